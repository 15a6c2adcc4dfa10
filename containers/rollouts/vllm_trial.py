"""Trials of an engine that is a program of its own: does it use the weights that it is given, and repeat itself?"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from peft import PeftModel
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from containers.harness.errors import StageError
from containers.losses.importance import sampling_kl
from containers.models.trial import evaluating
from containers.packing.logps import causal_of, row_logps
from containers.rollouts.vllm_process import ELSE

# Adapters of a trial move log-probabilities by at least so many nats a token, in so many tries of twice the last size.
_LEAST_MOVE, _TRIES = 1.0, 16
# By which share of that vLLM may be beside the policy: other kernels and half precision cause a tenth of it.
SHARE_OF_MOVE = 0.2
TRIAL_TOKENS = 16
# The KL of vLLM to the policy may grow to so many times that of the trial, and at least to this, by the weights' type.
_TIMES_THE_START = 10.0
_LEAST_KL = {torch.float32: 1e-5, torch.bfloat16: 2e-3}


class WritingEngine(Protocol):
    """What is tried."""

    def give(self, policy: Any) -> None:
        """Take the policy's present adapters, or all weights where there are none."""

    def written(
        self, prompts: Sequence[Sequence[int]], *, siblings: int, settings: GenerationConfig
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return tokens and their log-probabilities of so many completions of each prompt."""


def try_given(engine: WritingEngine, policy: Any, *, prompts: Sequence[Sequence[int]], room: int) -> float:
    """Give vLLM weights that change what the policy says, and demand the policy's own log-probabilities.

    At the start they are those that it has loaded itself, so that an engine which ignores them would look right.

    Args:
        prompts: token ids; the shortest and the longest are completed.
        room: maximum tokens of a prompt with its completion.

    Returns:
        A bound on the KL of vLLM to the policy, in nats a token: ten times the present one.

    Raises:
        StageError: vLLM does not say what the policy says.
    """
    by_length = sorted(map(list, prompts), key=len)
    causal, asked = causal_of(policy), [by_length[0], by_length[-1]]
    length = max(1, min(TRIAL_TOKENS, room - len(asked[1])))
    settings = GenerationConfig(max_new_tokens=length, do_sample=False)
    with evaluating(causal), moved_weights(policy, causal, asked) as moved:
        engine.give(policy)
        tokens, said = engine.written(asked, siblings=1, settings=settings)
        own = torch.cat([row_logps(causal, *row).float().cpu() for row in zip(asked, tokens, strict=True)])
    theirs = torch.tensor([value for row in said for value in row])
    apart = float((own - theirs).abs().mean())
    if not apart <= SHARE_OF_MOVE * moved:
        raise StageError(
            f"Weights that move the policy's log-probabilities by {moved:.2g} nats a token were given to vLLM, and "
            f"its own are {apart:.2g} from the policy's: it does not use them as the policy does. "
            f"{ELSE[0].upper()}{ELSE[1:]}."
        )
    floor = _LEAST_KL[torch.float32 if causal.dtype == torch.float32 else torch.bfloat16]
    return max(floor, _TIMES_THE_START * float(sampling_kl(own, theirs).mean()))


def replays(engine: WritingEngine, prompts: Sequence[Sequence[int]], settings: GenerationConfig) -> bool:
    """Whether the same seeds draw the same completions of these prompts again."""
    drawn = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            drawn.append(engine.written(prompts, siblings=2, settings=settings)[0])
    return drawn[0] == drawn[1]


def _moving(policy: Any) -> Callable[[str], bool]:
    """Return which weights a trial moves, by their names."""
    if isinstance(policy, PeftModel):
        return lambda name: "lora_B" in name

    def block(name: str) -> int:
        return next((int(part) for part in name.split(".") if part.isdigit()), -1)

    last = max(block(name) for name, _ in policy.named_parameters())
    return lambda name: block(name) == last


@contextmanager
def moved_weights(policy: Any, causal: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> Iterator[float]:
    """While this is open, the policy is another one; gives by how many nats a token, on average.

    Its adapters are moved, or, where it has none, the weights of its last block.

    Every rank moves them alike.

    Args:
        prompts: token ids; what the policy says of them is compared.
    """
    moves = _moving(policy)
    before = {name: weight.detach().clone() for name, weight in policy.named_parameters() if moves(name)}

    def said() -> Tensor:
        return torch.cat([row_logps(causal, prompt[:1], prompt[1:] or prompt).float() for prompt in prompts])

    try:
        plain, size, found = said(), 0.01, 0.0
        for _ in range(_TRIES):
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for name, weight in policy.named_parameters():
                    if name in before:
                        weight.copy_(before[name] + size * torch.randn(weight.shape, generator=generator).to(weight))
            found, size = float((said() - plain).abs().mean()), 2 * size
            if found >= _LEAST_MOVE:
                break
        yield found
    finally:
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                if name in before:
                    weight.copy_(before[name])
