"""The kernel for all trees of a row: what it is given, and that one which is not right is not used.

There is no GPU here, so a program stands in for torch's `varlen_attn`, with the segments and the alignment that torch
documents; the real one is asked for shapes only.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from containers.packing import kernel as tree_kernel
from containers.packing.attention import packed, packed_tree_attention
from containers.packing.kernel import Shape, attend_by_kernel, is_found_right, kernel_text, try_kernel
from containers.packing.trees import Tree
from tests.unit.factories.tiny_policy import tiny_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

HEADS, KEY_HEADS, WIDTH = 4, 2, 16
ROWS = {
    "pairs": (Tree(0, 5, (3, 4)), Tree(12, 2, (6, 1)), Tree(21, 0, (2, 6))),
    "single conversations": (Tree(0, 7, (3,)), Tree(10, 0, (4,))),
    "many completions": (Tree(0, 3, (1, 5, 2, 1)),),
}
Kernel = Callable[..., Tensor]


def kernel(*, seen: Callable[[int, int], Tensor], shared: str = "in turn", graded: bool = True) -> Kernel:
    """A stand-in: `seen` says which of the keys each query of a segment sees."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        of_queries: Tensor,
        of_keys: Tensor,
        most_queries: int,
        most_keys: int,
        *,
        scale: float | None,
        window_size: tuple[int, int],
        enable_gqa: bool,
    ) -> Tensor:
        assert window_size == (-1, 0)
        assert enable_gqa is (query.shape[1] != key.shape[1])
        assert of_queries.dtype is of_keys.dtype is torch.int32
        assert (of_queries[-1], of_keys[-1]) == (len(query), len(key)) == (len(query), len(value))
        assert (of_queries.diff().max(), of_keys.diff().max()) == (most_queries, most_keys)
        if not graded:
            key = key.detach()
        sharing = query.shape[1] // key.shape[1]
        key, value = (
            states.repeat_interleave(sharing, 1) if shared == "in turn" else states.repeat(1, sharing, 1)
            for states in (key, value)
        )
        parts = []
        for (q, q_end), (k, k_end) in zip(pairwise(of_queries.tolist()), pairwise(of_keys.tolist()), strict=True):
            one, other, third = (states.transpose(0, 1) for states in (query[q:q_end], key[k:k_end], value[k:k_end]))
            mask = seen(q_end - q, k_end - k).to(query.device)
            parts.append(scaled_dot_product_attention(one, other, third, attn_mask=mask, scale=scale).transpose(0, 1))
        return torch.cat(parts)

    return attend


def lower_right(num_queries: int, num_keys: int) -> Tensor:
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


def upper_left(num_queries: int, num_keys: int) -> Tensor:
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril()


def one_too_many(num_queries: int, num_keys: int) -> Tensor:
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries + 1)


def everything(num_queries: int, num_keys: int) -> Tensor:
    return torch.ones(num_queries, num_keys, dtype=torch.bool)


def refuses(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


RIGHT = kernel(seen=lower_right)


@pytest.fixture(autouse=True)
def _nothing_tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tree_kernel, "_failures", {})
    tree_kernel._segments.cache_clear()
    yield
    tree_kernel._segments.cache_clear()


def attended(attend: Callable[..., Tensor], trees: tuple[Tree, ...], scaling: float | None) -> list[Tensor]:
    """The outcome, and the gradients of queries, keys and values."""
    drawn = torch.Generator().manual_seed(1)
    states = [
        torch.randn(1, heads, trees[-1].end, WIDTH, generator=drawn, requires_grad=True)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    outcome = attend(*states, trees, scaling=scaling)
    return [outcome, *torch.autograd.grad(outcome.square().sum(), states)]


def branch_by_branch(query: Tensor, key: Tensor, value: Tensor, trees: Any, *, scaling: float | None) -> Tensor:
    return packed_tree_attention(torch.nn.Module(), query, key, value, None, trees=trees, scaling=scaling)[0]


@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("trees", ROWS.values(), ids=ROWS)
def test_one_kernel_for_all_trees_gives_what_branch_by_branch_gives(
    monkeypatch: pytest.MonkeyPatch, trees: tuple[Tree, ...], scaling: float | None
) -> None:
    monkeypatch.setattr(tree_kernel, "varlen_attn", RIGHT)
    one, other = (attended(attend, trees, scaling) for attend in (attend_by_kernel, branch_by_branch))
    for found, wanted in zip(one, other, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key_heads", [HEADS, KEY_HEADS, 1])
def test_a_right_kernel_is_found_right(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, key_heads: int) -> None:
    monkeypatch.setattr(tree_kernel, "varlen_attn", RIGHT)
    assert tree_kernel.failure_of(Shape(torch.device("cpu"), dtype, HEADS, key_heads, WIDTH)) == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (kernel(seen=upper_left), "its outcome is"),
        (kernel(seen=one_too_many), "its outcome is"),
        (kernel(seen=everything), "its outcome is"),
        (kernel(seen=lower_right, shared="by blocks"), "its outcome is"),
        (kernel(seen=lower_right, graded=False), "it fails: The differentiated Tensor at index 1"),
        (refuses, "it fails: FlashAttention only supports Ampere GPUs or newer."),
    ],
    ids=["aligned at the start", "one key too many", "not causal", "other heads share", "no gradient", "no such GPU"],
)
def test_a_wrong_kernel_is_found_out(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, wrong: Kernel, said: str
) -> None:
    monkeypatch.setattr(tree_kernel, "varlen_attn", wrong)
    assert said in tree_kernel.failure_of(Shape(torch.device("cpu"), dtype, HEADS, KEY_HEADS, WIDTH))


def test_wrong_gradients_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(*arguments: Any, **more: Any) -> Tensor:
        outcome = RIGHT(*arguments, **more)
        return outcome.detach() + (outcome - outcome.detach()) / 2

    monkeypatch.setattr(tree_kernel, "varlen_attn", halved)
    said = tree_kernel.failure_of(Shape(torch.device("cpu"), torch.bfloat16, HEADS, KEY_HEADS, WIDTH))
    assert said.startswith("its gradient of queries is")


def test_a_full_gpu_says_nothing_about_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tree_kernel, "varlen_attn", full)
    with pytest.raises(torch.OutOfMemoryError):
        tree_kernel.failure_of(Shape(torch.device("cpu"), torch.bfloat16, HEADS, KEY_HEADS, WIDTH))


def test_trying_it_changes_no_random_number_and_goes_with_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_kernel, "varlen_attn", RIGHT)
    before = torch.get_rng_state()
    with torch.inference_mode():
        assert tree_kernel.failure_of(Shape(torch.device("cpu"), torch.bfloat16, HEADS, KEY_HEADS, WIDTH)) == ""
    assert torch.equal(torch.get_rng_state(), before)


def test_on_a_cpu_none_is_tried_or_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_kernel, "varlen_attn", refuses)
    model = tiny_causal_model(tiny_tokenizer())
    with packed(model):
        pass
    assert (tree_kernel._failures, kernel_text(model)) == ({}, "")
    states = torch.zeros(1, HEADS, 3, WIDTH, dtype=torch.bfloat16)
    assert not is_found_right(states, states)


@pytest.mark.parametrize(
    ("stand_in", "said"),
    [
        (RIGHT, "Attention is computed by one kernel for all of them."),
        (
            refuses,
            "Attention is computed branch by branch, not by one kernel for all of them: it fails: "
            "FlashAttention only supports Ampere GPUs or newer.",
        ),
    ],
)
def test_what_was_found_is_said_and_kept(monkeypatch: pytest.MonkeyPatch, stand_in: Kernel, said: str) -> None:
    shape = Shape(torch.device("cpu"), torch.bfloat16, HEADS, KEY_HEADS, WIDTH)
    monkeypatch.setattr(tree_kernel, "_shapes_of", lambda _: [shape])
    monkeypatch.setattr(tree_kernel, "varlen_attn", stand_in)
    model: Any = None
    try_kernel(model)
    assert kernel_text(model) == said
    monkeypatch.setattr(tree_kernel, "failure_of", lambda _: pytest.fail("it was tried again"))
    try_kernel(model)


def test_torchs_own_kernel_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_kernel, "computed_dtype", lambda states: states.dtype)
    query, key, value = (
        torch.empty(1, heads, ROWS["pairs"][-1].end, WIDTH, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    found = attend_by_kernel(query, key, value, ROWS["pairs"], scaling=None)
    assert found.shape == (1, ROWS["pairs"][-1].end, HEADS, WIDTH)
    gradients = torch.autograd.grad(found.sum(), (query, key, value))
    assert [part.shape for part in gradients] == [query.shape, key.shape, value.shape]


def test_a_share_of_the_heads_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_causal_model(tiny_tokenizer())
    monkeypatch.setattr(tree_kernel, "device_of", lambda _: torch.device("cuda"))
    heads = {(shape.heads, shape.key_heads) for shape in tree_kernel._shapes_of(model)}
    assert heads == {(4, 2)}
    model._tp_size = 2
    assert {(shape.heads, shape.key_heads) for shape in tree_kernel._shapes_of(model)} == {(4, 2), (2, 1)}
