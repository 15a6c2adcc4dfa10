"""Scoring pairs: the data path of the `rewardbench` package beside ours, in one run: python -m benchmarks.score_speed

Both score the same pairs with the same weights (random, Qwen3 of about 30M parameters, float32), turn about, and must
agree.
`rewardbench` 0.1.4 takes rows in file order, first the chosen sides of a batch, then the rejected ones, pads each batch
on the left to its longest, and passes the padding mask (its `RewardBenchPipeline`; it cannot run as it is on a machine
without CUDA, so its steps are repeated here). At its default that is 8 rows a batch, at its best on a CPU 1.

    --data FOLDER    real rows and the real vocabulary of the shared data, instead of random text
    --budgets N …    our way at these tokens per forward as well, in the same alternations
    --write          put what is printed into its part of benchmarks/score_speed.md
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedTokenizerBase

from benchmarks.speed_inputs import MAX_LENGTH, ConversationPair, random_pairs, real_pairs, save_reward_model
from containers.stages.packed_scoring import computed_tokens, shared_groups
from containers.stages.scoring import RewardScorer
from containers.stages.token_budget import CPU_BATCH_TOKENS

Scores = list[float]

_MAX_ITEMS = 64
_TOLERANCE = 1e-4
_DEFAULT = "rewardbench's way, 8 rows a batch (its default)"
_ONE_BY_ONE = "rewardbench's way, 1 row a batch (its best here)"
# Ratios that are wanted on a CPU, on random text of the longer lengths.
_WANTED = {_DEFAULT: 5.0, _ONE_BY_ONE: 1.45}
_OURS = f"**ours, {CPU_BATCH_TOKENS:,} tokens a batch (the default)**"
_FIGURES = Path(__file__).with_suffix(".md")


def main() -> int:
    """Print a table; 1 where scores differ or a wanted ratio is missed."""
    transformers.utils.logging.disable_progress_bar()
    arguments = _arguments()
    pairs = real_pairs(arguments.data, arguments.pairs) if arguments.data else random_pairs(arguments.pairs)
    with tempfile.TemporaryDirectory(prefix="score-speed-") as folder:
        scorer = _scorer(Path(folder), pairs, data=arguments.data)
    tokens = [[scorer.tokenize(side) for side in pair] for pair in pairs]
    ways = _ways(scorer, pairs, budgets=arguments.budgets)
    seconds, scores = _alternate(ways, rounds=arguments.rounds)
    difference = max(abs(a - b) for found in scores.values() for a, b in zip(found, scores[_OURS], strict=True))
    text = _table(arguments, scorer, tokens, seconds, difference)
    print(text)
    if arguments.write:
        _write(text, heading="Real rows" if arguments.data else "Random text")
    fast = all(statistics.median(_ratios(seconds, name)) >= wanted for name, wanted in _WANTED.items())
    return 0 if difference <= _TOLERANCE and (fast or arguments.data is not None) else 1


def _ways(
    scorer: RewardScorer, pairs: Sequence[ConversationPair], *, budgets: Sequence[int]
) -> dict[str, Callable[[], Scores]]:
    sides = [side for pair in pairs for side in pair]

    def with_budget(batch_tokens: int) -> RewardScorer:
        return RewardScorer(
            scorer.model, scorer.tokenizer, max_length=MAX_LENGTH, batch_size=_MAX_ITEMS, batch_tokens=batch_tokens
        )

    scorers = {_OURS: scorer, **{_budget(n): with_budget(n) for n in budgets if n != CPU_BATCH_TOKENS}}
    for each in scorers.values():
        each.score(sides[:2])  # a scorer tries its first conversations both ways, once
    return {
        _DEFAULT: lambda: _as_rewardbench(scorer, pairs, batch_size=8),
        _ONE_BY_ONE: lambda: _as_rewardbench(scorer, pairs, batch_size=1),
        **{name: partial(each.score, sides) for name, each in scorers.items()},
    }


def _budget(batch_tokens: int) -> str:
    return f"ours, {batch_tokens:,} tokens a batch"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with real rows and the real vocabulary")
    parser.add_argument("--pairs", type=int, default=32, help="pairs scored in each round")
    parser.add_argument("--rounds", type=int, default=3, help="alternations")
    parser.add_argument("--budgets", type=int, nargs="*", default=[], help="further tokens per forward of our way")
    parser.add_argument("--write", action="store_true", help=f"write the table into {_FIGURES.name}")
    return parser.parse_args()


def _scorer(folder: Path, pairs: Sequence[ConversationPair], *, data: Path | None) -> RewardScorer:
    save_reward_model(folder, pairs, data=data)
    return RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=MAX_LENGTH, batch_size=_MAX_ITEMS)


def _as_rewardbench(scorer: RewardScorer, pairs: Sequence[ConversationPair], *, batch_size: int) -> Scores:
    """Scores in the order chosen, rejected of each pair."""
    tokenizer: PreTrainedTokenizerBase = scorer.tokenizer
    model = scorer.model
    side_before, tokenizer.padding_side = tokenizer.padding_side, "left"
    scores = [0.0] * (2 * len(pairs))
    try:
        for start in range(0, len(pairs), batch_size):
            batch = pairs[start : start + batch_size]
            for side in (0, 1):
                texts = [tokenizer.apply_chat_template(pair[side], tokenize=False) for pair in batch]
                inputs = tokenizer(texts, truncation=False, padding=True, return_tensors="pt", add_special_tokens=False)
                with torch.no_grad():
                    logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
                for number, score in enumerate(logits.float().squeeze(-1).tolist()):
                    scores[2 * (start + number) + side] = score
    finally:
        tokenizer.padding_side = side_before
    return scores


def _alternate(
    ways: dict[str, Callable[[], Scores]], *, rounds: int
) -> tuple[dict[str, list[float]], dict[str, Scores]]:
    """Seconds of each way in each round, and the scores of its last round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    scores: dict[str, Scores] = {}
    ways[_OURS]()  # warms up threads and allocator for all
    for number in range(1, rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            scores[name] = way()
            seconds[name].append(time.perf_counter() - start)
            print(f"round {number}: {name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
    return seconds, scores


def _ratios(seconds: dict[str, list[float]], name: str) -> list[float]:
    return [theirs / ours for theirs, ours in zip(seconds[name], seconds[_OURS], strict=True)]


def _padded(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> int:
    """Tokens of padded batches."""
    return sum(len(batch) * max(lengths[place] for place in batch) for batch in batches)


def _tokens_through(tokens: Sequence[Sequence[Sequence[int]]], name: str, *, budgets: Sequence[int]) -> int:
    """Tokens that go through the network, padding among them, by a way of scoring."""
    sides = [[len(pair[side]) for pair in tokens] for side in (0, 1)]
    if name in (_DEFAULT, _ONE_BY_ONE):
        size, count = (8 if name == _DEFAULT else 1), len(tokens)
        batches = [range(start, min(start + size, count)) for start in range(0, count, size)]
        return sum(_padded(side, batches) for side in sides)
    budget = next((budget for budget in budgets if _budget(budget) == name), CPU_BATCH_TOKENS)
    both = [list(side) for pair in tokens for side in pair]
    groups = shared_groups(both, max_items=_MAX_ITEMS, max_tokens=budget)
    return sum(computed_tokens([both[place] for place in group]) for group in groups)


def _table(
    arguments: argparse.Namespace,
    scorer: RewardScorer,
    tokens: list[list[list[int]]],
    seconds: dict[str, list[float]],
    difference: float,
) -> str:
    lengths = sorted(len(side) for pair in tokens for side in pair)
    shared = sum(computed_tokens(pair) for pair in tokens)
    parameters = sum(p.numel() for name, p in scorer.model.named_parameters() if "embed" not in name)
    data = "real rows, Qwen's vocabulary" if arguments.data else "prompts 200 to 2,000 tokens, answers 100 to 600"
    lines = [
        f"{len(tokens)} pairs ({data}), {sum(lengths):,} tokens, {lengths[0]:,} to {lengths[-1]:,} a conversation "
        f"(median {statistics.median_low(lengths):,}); {parameters / 1e6:.0f}M parameters beside the embeddings, "
        f"float32, {torch.get_num_threads()} threads of {os.cpu_count()} cores ({platform.machine()}), load "
        f"{os.getloadavg()[0]:.1f} at the end; torch {torch.__version__}, transformers {transformers.__version__}; "
        f"{arguments.rounds} alternations.",
        f"Largest difference between the scores: {difference:.1e} (at most {_TOLERANCE:.0e}). A prompt that is "
        f"computed once for both of its answers can save no more than its tokens: {sum(lengths) / shared:.2f} times.",
        "",
        "| way | tokens computed | seconds, median | pairs/s | the default is faster by |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, taken in seconds.items():
        padded = _tokens_through(tokens, name, budgets=arguments.budgets)
        ratio = _ratios(seconds, name)
        spread = "" if name == _OURS else f"{statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})"
        median = statistics.median(taken)
        lines.append(f"| {name} | {padded:,} | {median:.1f} | {len(tokens) / median:.2f} | {spread} |")
    return "\n".join(lines)


def _write(text: str, *, heading: str) -> None:
    """Replace the section of that heading in the file of figures."""
    before, begin, rest = _FIGURES.read_text(encoding="utf-8").partition(f"## {heading}\n")
    if not begin:
        raise SystemExit(f"{_FIGURES} has no section `{heading}` to write into.")
    _, end, after = rest.partition("\n## ")
    command = f"    python -m benchmarks.score_speed {shlex.join(sys.argv[1:])}"
    _FIGURES.write_text(f"{before}{begin}\n{command}\n\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
