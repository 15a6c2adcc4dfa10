"""Time attention over packed pairs, for each way that this device has.

One layer, forward and backward, of rows of pairs whose prompts are shared. The ways: each conversation as a row of a
padded batch (a trainer without packs), branch by branch, and on a GPU one kernel for all branches (training uses it
there, once it was found right) and FlexAttention. The ways alternate in one run. Each must give the result of branch by
branch.

    --forward    forward alone, as scores are computed; on a CPU also with every second answer in two parts without a
                 mask, its prompt and itself, joined by their log-sum-exp
    --write      write the output into its part of benchmarks/attention_ways.md
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from benchmarks.provenance import commit
from benchmarks.speed_table import circumstances, write_part
from containers.packing import kernel as tree_kernel
from containers.packing.attention import packed_tree_attention
from containers.packing.kernel import Shape, attend_by_kernel
from containers.packing.trees import Tree

_FIGURES = Path(__file__).with_suffix(".md")
_PROMPT_TOKENS, _ANSWER_TOKENS = (200, 2000), (100, 600)
_PADDED = "each conversation a row, padded"
_BRANCHES = "branch by branch"
_KERNEL = "one kernel for all"
_FLEX = "FlexAttention, compiled"
_JOINED = "second answers in two parts, joined"
# Relative to the largest value; only padding and the order of sums differ.
_ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Layer:
    """Heads and dtype of the timed layer."""

    heads: int
    key_heads: int
    width: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Way:
    """The queries, keys and values of a way, its attention, and its result as one row of all trees."""

    states: Sequence[Tensor]
    attend: Callable[..., Tensor]
    in_row: Callable[[Tensor], Tensor] = lambda found: found

    def once(self, *, backward: bool) -> tuple[float, Tensor]:
        """Return the seconds of one forward, with its backward if `backward`, and the result."""
        leaves = [part.detach().requires_grad_(backward) for part in self.states]
        _wait(leaves[0].device)
        start = time.perf_counter()
        found = self.attend(*leaves)
        if backward:
            torch.autograd.grad(found, leaves, torch.ones_like(found))
        _wait(leaves[0].device)
        return time.perf_counter() - start, self.in_row(found.detach())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> int:
    """Print a table; return 1 if a way gives another result."""
    arguments, measured = _arguments(), commit()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Qwen3-8B's heads on a GPU, those of the other benchmarks' model on a CPU.
    layer = (
        Layer(32, 8, 128, torch.bfloat16, device) if device.type == "cuda" else Layer(8, 4, 64, torch.float32, device)
    )
    trees = _trees(arguments.pairs)
    ways = _ways(layer, trees)
    if arguments.forward and device.type == "cpu":
        ways[_JOINED] = Way(ways[_BRANCHES].states, partial(_joined, trees=trees))
    seconds, outcomes = _alternate(ways, rounds=arguments.rounds, backward=not arguments.forward)
    differences = {name: _difference(found, outcomes[_BRANCHES]) for name, found in outcomes.items()}
    text = _text(layer, trees, seconds, differences, rounds=arguments.rounds)
    print(text)
    if arguments.write:
        title = "Attention over packed pairs: one layer"
        heading = _device_name(device) + (", forward alone" if arguments.forward else ", forward and backward")
        module = "benchmarks.attention_ways"
        write_part(_FIGURES, text, module=module, title=title, heading=heading, measured=measured)
    return int(any(difference > _ALLOWED[layer.dtype] for difference in differences.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=8, help="pairs in a row; 8 unless given")
    parser.add_argument("--forward", action="store_true", help="forward alone, as scores are computed")
    parser.add_argument("--rounds", type=int, default=5, help="alternations; 5 unless given")
    parser.add_argument("--write", action="store_true", help=f"write the table into {_FIGURES.name}")
    return parser.parse_args()


def _trees(num_pairs: int) -> tuple[Tree, ...]:
    """Return pairs of the longer lengths, one after the other."""
    rng = random.Random(0)  # noqa: S311 - lengths, not secrets
    found: list[Tree] = []
    for _ in range(num_pairs):
        branches = (rng.randint(*_ANSWER_TOKENS), rng.randint(*_ANSWER_TOKENS))
        found.append(Tree(found[-1].end if found else 0, rng.randint(*_PROMPT_TOKENS), branches))
    return tuple(found)


def _ways(layer: Layer, trees: tuple[Tree, ...]) -> dict[str, Way]:
    """Return the ways of this device; without the kernel, and with a note why, if it is not right on this GPU."""
    drawn = torch.Generator().manual_seed(0)
    row = [
        torch.randn(1, heads, trees[-1].end, layer.width, generator=drawn).to(layer.device, layer.dtype)
        for heads in (layer.heads, layer.key_heads, layer.key_heads)
    ]
    ways = {_PADDED: _padded(row, trees), _BRANCHES: Way(row, partial(_branch_by_branch, trees=trees))}
    if layer.device.type == "cuda":
        failure = tree_kernel.failure_of(Shape(layer.device, layer.dtype, layer.heads, layer.key_heads, layer.width))
        if failure:
            print(f"{_KERNEL}: {failure}", file=sys.stderr)
        else:
            ways[_KERNEL] = Way(row, partial(attend_by_kernel, trees=trees, scaling=None))
        ways[_FLEX] = Way(
            row, partial(by_flex, mask=flex_mask(trees, layer.device), attend=torch.compile(flex_attention))
        )
    return ways


def _branch_by_branch(query: Tensor, key: Tensor, value: Tensor, *, trees: tuple[Tree, ...]) -> Tensor:
    # The kernel is used for shapes only that `packed` has tried, and nothing here has.
    return packed_tree_attention(torch.nn.Module(), query, key, value, None, trees=trees)[0]


def _joined(query: Tensor, key: Tensor, value: Tensor, *, trees: tuple[Tree, ...]) -> Tensor:
    """Attend branch by branch, but separately to trunk and branch after the first branch. There is no gradient."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    made: list[Tensor] = []
    for tree in trees:
        end = tree.start + tree.trunk
        trunk = key[:, :, tree.start : end], value[:, :, tree.start : end]
        for number, (length, last) in enumerate(zip(tree.branches, tree.lasts, strict=True)):
            start = tree.start if not number else last + 1 - length
            q, k, v = (states[:, :, start : last + 1] for states in (query, key, value))
            own, own_weight = attend(q, k, v, 0.0, True)
            if number and tree.trunk:
                before, weight = attend(q, *trunk, 0.0, False)
                own = torch.lerp(own, before, torch.sigmoid(weight - own_weight).unsqueeze(-1))
            made.append(own)
    return torch.cat(made, dim=2).transpose(1, 2)


def _padded(row: Sequence[Tensor], trees: tuple[Tree, ...]) -> Way:
    """Return the way of a batch of whole conversations, padded on the right, with transformers' own call of SDPA."""
    device = row[0].device
    places = [
        [*range(tree.start, tree.start + tree.trunk), *range(last + 1 - branch, last + 1)]
        for tree in trees
        for branch, last in zip(tree.branches, tree.lasts, strict=True)
    ]
    lengths = torch.tensor([len(of_one) for of_one in places], device=device)
    longest = max(map(len, places))
    index = torch.tensor([of_one + [0] * (longest - len(of_one)) for of_one in places], device=device)
    is_token = torch.arange(longest, device=device) < lengths[:, None]
    mask = is_token[:, None, None] & torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
    module: Any = torch.nn.Module()
    module.num_key_value_groups = row[0].shape[1] // row[1].shape[1]

    def in_row(found: Tensor) -> Tensor:
        whole = found.new_zeros(1, row[0].shape[2], *found.shape[2:])
        whole[0, index[is_token]] = found[is_token]
        return whole

    batch = [states[0][:, index].transpose(0, 1).contiguous() for states in row]
    return Way(batch, lambda *states: sdpa_attention_forward(module, *states, attention_mask=mask)[0], in_row)


def flex_mask(trees: tuple[Tree, ...], device: torch.device) -> BlockMask:
    """Return the mask of which token sees which, in blocks; the same in every layer."""
    tree_of, branch_of = (
        torch.tensor(numbers, device=device)
        for numbers in zip(
            *(
                (number, branch)
                for number, tree in enumerate(trees)
                for branch, length in enumerate((tree.trunk, *tree.branches))
                for _ in range(length)
            ),
            strict=True,
        )
    )

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = (branch_of[key] == 0) | (branch_of[key] == branch_of[query])
        return (tree_of[key] == tree_of[query]) & own & (key <= query)

    tokens = trees[-1].end
    return create_block_mask(sees, None, None, tokens, tokens, device=str(device))


def by_flex(query: Tensor, key: Tensor, value: Tensor, *, mask: BlockMask, attend: Callable[..., Tensor]) -> Tensor:
    """Return [1, T, heads, width], as the other ways do."""
    return attend(query, key, value, block_mask=mask, enable_gqa=True).transpose(1, 2)


def _alternate(
    ways: dict[str, Way], *, rounds: int, backward: bool
) -> tuple[dict[str, list[float]], dict[str, Tensor]]:
    """Return the seconds of each way, alternation by alternation, and its result."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    # Compile, and try shapes, before the timing.
    outcomes = {name: way.once(backward=backward)[1] for name, way in ways.items()}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(way.once(backward=backward)[0])
    return seconds, outcomes


def _difference(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).abs().max() / wanted.float().abs().max())


def _text(
    layer: Layer,
    trees: tuple[Tree, ...],
    seconds: dict[str, list[float]],
    differences: dict[str, float],
    *,
    rounds: int,
) -> str:
    computed = trees[-1].end
    whole = sum(tree.trunk + branch for tree in trees for branch in tree.branches)
    lines = [
        f"{len(trees)} pairs, {whole:,} tokens, {computed:,} with each prompt once; {layer.heads} heads, "
        f"{layer.key_heads} of keys, width {layer.width}, {str(layer.dtype).removeprefix('torch.')}; "
        f"{_device_name(layer.device)}; {circumstances(rounds)} The first call of each way is not counted.",
        "",
        f"| way | milliseconds, median | {_BRANCHES} is faster by | apart from it by, of the largest value |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, measured in seconds.items():
        faster = [one / other for one, other in zip(measured, seconds[_BRANCHES], strict=True)]
        compared = (
            "" if name == _BRANCHES else f"{statistics.median(faster):.2f} ({min(faster):.2f} to {max(faster):.2f})"
        )
        apart = "" if name == _BRANCHES else f"{differences[name]:.1g}"
        lines.append(f"| {name} | {1000 * statistics.median(measured):,.1f} | {compared} | {apart} |")
    return "\n".join(lines)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


if __name__ == "__main__":
    sys.exit(main())
