"""The log-probabilities of a GPU come from TRL's Triton kernels: here Triton's interpreter computes them on a CPU.

`make test-triton` brings Triton, which the CPU build of torch does without, and switches its interpreter on.
"""

import os
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction, chunked_logprob

from containers.packing.kernel import try_kernels

pytestmark = [pytest.mark.triton, pytest.mark.stages]

# More words than one block of the kernels has (1,024), and no multiple of it nor of a tile.
WORDS, WIDTH, TOKENS = 2500, 48, 29
PARTS = ("log-probability", "entropy", "gradient of hidden states", "gradient of weights", "gradient of bias")


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices for which a kernel of Triton was taken: each, also the CPU."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON'S KERNELS NOT TESTED: `make test-triton` brings Triton and its interpreter.")
    if find_spec("triton") is None:
        pytest.fail("Triton is not here: run `make test-triton`.")
    asked: list[torch.device] = []

    def take(device: torch.device) -> bool:
        asked.append(device)
        return True

    monkeypatch.setattr(chunked_logprob, "_use_triton", take)
    return asked


def made(dtype: torch.dtype, *, with_bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Hidden states [N, H], weights [V, H], bias [V] and targets [N], among them the first and the last word."""
    drawn = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=drawn).to(dtype).requires_grad_()
    weight = (torch.randn(WORDS, WIDTH, generator=drawn) / 4).to(dtype).requires_grad_()
    bias = torch.randn(WORDS, generator=drawn).to(dtype).requires_grad_() if with_bias else None
    targets = torch.randint(0, WORDS, (TOKENS,), generator=drawn)
    targets[:4] = torch.tensor([0, 1023, 1024, WORDS - 1])
    return hidden, weight, bias, targets


def computed(
    given: tuple[Tensor, Tensor, Tensor | None, Tensor], *, tile_words: int, temperature: float, entropy_learns: bool
) -> list[Tensor]:
    """What `PARTS` names; the gradients are those of a sum in which every token has another weight."""
    hidden, weight, bias, targets = given
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    logps, entropies, *_ = ChunkedLogProbFunction.apply(
        hidden, weight, bias, targets, temperature, tile_words, None, 1.0, ("entropy",)
    )
    return [logps.detach(), entropies.detach(), *gradients(logps, entropies, leaves, entropy_learns=entropy_learns)]


def exact(
    given: tuple[Tensor, Tensor, Tensor | None, Tensor], *, temperature: float, entropy_learns: bool
) -> list[Tensor]:
    """The same by log-softmax of all logits in float64."""
    hidden, weight, bias, targets = given
    leaves = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight, bias) if leaf is not None]
    logits = leaves[0] @ leaves[1].T + (leaves[2] if bias is not None else 0.0)
    every = (logits / temperature).log_softmax(-1)
    logps, entropies = every.gather(1, targets[:, None]).squeeze(1), -(every.exp() * every).sum(-1)
    return [logps.detach(), entropies.detach(), *gradients(logps, entropies, leaves, entropy_learns=entropy_learns)]


def gradients(logps: Tensor, entropies: Tensor, leaves: list[Tensor], *, entropy_learns: bool) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 1, TOKENS, dtype=logps.dtype)
    loss = (logps * weights).sum() + (0.3 * (entropies * weights.flip(0)).sum() if entropy_learns else 0.0)
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("entropy_learns", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "allowed"), [(torch.float32, 5e-6), (torch.bfloat16, 2e-2)], ids=["float32", "bfloat16"]
)
def test_log_probabilities_entropies_and_gradients_are_those_of_log_softmax(
    launches: list[torch.device], dtype: torch.dtype, allowed: float, with_bias: bool, entropy_learns: bool
) -> None:
    """`allowed`: the difference, as a part of the largest value; bfloat16 rounds the logits themselves."""
    given = made(dtype, with_bias=with_bias)
    found = computed(given, tile_words=1536, temperature=0.7, entropy_learns=entropy_learns)
    assert len(launches) == 4  # two tiles of words, forward and backward
    wanted = exact(given, temperature=0.7, entropy_learns=entropy_learns)
    for part, one, other in zip(PARTS, found, wanted, strict=False):
        difference = float((one.double() - other).abs().max() / other.abs().max())
        assert difference <= allowed, f"{part} is off by {difference:.1e}"


def test_they_give_what_the_path_without_triton_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    given = made(torch.float32, with_bias=False)
    by_triton = computed(given, tile_words=1024, temperature=1.0, entropy_learns=True)
    monkeypatch.setattr(chunked_logprob, "_use_triton", lambda device: False)
    by_torch = computed(given, tile_words=1024, temperature=1.0, entropy_learns=True)
    for part, one, other in zip(PARTS, by_triton, by_torch, strict=False):
        assert float((one - other).abs().max()) <= 5e-6, part


def test_the_trial_before_a_training_runs_them(launches: list[torch.device]) -> None:
    try_kernels(torch.device("cpu"))
    assert len(launches) == 2
