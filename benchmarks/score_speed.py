"""Time the scoring of pairs: ours beside `rewardbench` and TRL's evaluation: python -m benchmarks.score_speed

All score the same pairs with the same weights (random, Qwen3 of about 30M parameters, float32), from their texts on,
and must agree. They alternate in one run, each time in its own process.
`rewardbench` 0.1.4 takes rows in file order, first the chosen sides of a batch, then the rejected ones, pads each batch
on the left to its longest, and passes the padding mask. Its `RewardBenchPipeline` cannot run unchanged on a machine
without CUDA, so its steps are repeated here. Its default is 8 rows a batch; on a CPU 1 is best.
TRL's is `RewardTrainer.evaluate`, with 8 pairs a batch, its default, and with 1.

    --data FOLDER    real rows and the real vocabulary of the shared data, instead of random text
    --budgets N …    our way at these tokens per forward as well, in the same alternations
    --best           only rewardbench at its best and ours, which so run closer together in time
    --profile        where the time of our way goes, instead of the alternations
    --write          write the output into its part of benchmarks/score_speed.md
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from trl import RewardConfig, RewardTrainer

from benchmarks.speed_inputs import (
    MAX_LENGTH,
    ConversationPair,
    matmul_gflops,
    random_pairs,
    real_pairs,
    save_reward_model,
)
from benchmarks.speed_table import Runs, alternate, circumstances, median, peak_bytes, ratios, table, write_part
from containers.packing.scoring import computed_tokens, shared_groups
from containers.scoring.scorer import RewardScorer
from containers.token_budgets import CPU_BATCH_TOKENS

MODULE = "benchmarks.score_speed"
# In the order chosen, rejected for each pair.
Scores = list[float]

_MAX_ITEMS = 64
_TOLERANCE = 1e-4
_DEFAULT = "rewardbench's way, 8 rows a batch (its default)"
_ONE_BY_ONE = "rewardbench's way, 1 row a batch (its best here)"
_TRL_DEFAULT = "TRL's evaluation, 8 pairs a batch (its default)"
_TRL_ONE_BY_ONE = "TRL's evaluation, 1 pair a batch"
_ROWS = {_DEFAULT: 8, _ONE_BY_ONE: 1}
_TRL_PAIRS = {_TRL_DEFAULT: 8, _TRL_ONE_BY_ONE: 1}
# Ratios that are wanted on a CPU, on random text of the longer lengths.
_WANTED = {_DEFAULT: 5.0, _ONE_BY_ONE: 1.45}
_OURS = f"**ours, {CPU_BATCH_TOKENS:,} tokens a batch (the default)**"
_FIGURES = Path(__file__).with_suffix(".md")


def main() -> int:
    """Print a table; return 1 if scores differ or a wanted ratio is missed."""
    transformers.utils.logging.disable_progress_bar()
    arguments = _arguments()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure, Path(arguments.folder), budgets=arguments.budgets)))
        return 0
    budgets = [budget for budget in arguments.budgets if budget != CPU_BATCH_TOKENS]
    pairs = real_pairs(arguments.data, arguments.pairs) if arguments.data else random_pairs(arguments.pairs)
    with tempfile.TemporaryDirectory(prefix="score-speed-") as name:
        folder = Path(name)
        save_reward_model(folder / "model", pairs, data=arguments.data)
        (folder / "pairs.json").write_text(json.dumps(pairs))
        if arguments.profile:
            return _report(_profile(folder), arguments, heading="Where the time of our way goes")
        tokens = _tokens(folder)
        # The two most important ways run one after the other, since the machine's speed changes within minutes.
        others = [] if arguments.best else [_DEFAULT, _TRL_DEFAULT, _TRL_ONE_BY_ONE]
        ways = [*others, _ONE_BY_ONE, _OURS, *map(_budget, budgets)]
        options = ["--budgets", *map(str, budgets)]
        found = alternate(ways, module=MODULE, folder=folder, rounds=arguments.rounds, options=options)
    difference = _largest_difference(found)
    heading = ("Real rows" if arguments.data else "Random text") + (", beside its best alone" if arguments.best else "")
    _report(_text(arguments, tokens, found, difference), arguments, heading=heading)
    wanted = [(name, ratio) for name, ratio in _WANTED.items() if name in found]
    fast = all(statistics.median(ratios(found, name, ours=_OURS)) >= ratio for name, ratio in wanted)
    return 0 if difference <= _TOLERANCE and (fast or arguments.data is not None) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with real rows and the real vocabulary")
    parser.add_argument("--pairs", type=int, default=32, help="pairs scored in each round")
    parser.add_argument("--rounds", type=int, default=3, help="alternations")
    parser.add_argument("--budgets", type=int, nargs="*", default=[], help="further tokens per forward of our way")
    parser.add_argument("--best", action="store_true", help="rewardbench's way at its best and ours, no others")
    parser.add_argument("--profile", action="store_true", help="where the time of our way goes, and nothing else")
    parser.add_argument("--write", action="store_true", help=f"write the table into {_FIGURES.name}")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def _report(text: str, arguments: argparse.Namespace, *, heading: str) -> int:
    print(text)
    if arguments.write:
        write_part(_FIGURES, text, module=MODULE, title="Scoring pairs", heading=heading)
    return 0


def _budget(batch_tokens: int) -> str:
    return f"ours, {batch_tokens:,} tokens a batch"


def _scorer(folder: Path, *, batch_tokens: int | None = None) -> RewardScorer:
    scorer = RewardScorer.load(
        folder / "model", device="cpu", dtype=torch.float32, max_length=MAX_LENGTH, batch_size=_MAX_ITEMS
    )
    if batch_tokens is None:
        return scorer
    return RewardScorer(
        scorer.model, scorer.tokenizer, max_length=MAX_LENGTH, batch_size=_MAX_ITEMS, batch_tokens=batch_tokens
    )


def _tokens(folder: Path) -> list[list[list[int]]]:
    scorer = _scorer(folder)
    return [[scorer.tokenize(side) for side in pair] for pair in json.loads((folder / "pairs.json").read_text())]


def _measure(name: str, folder: Path, *, budgets: Sequence[int]) -> dict[str, Any]:
    """Return the seconds, scores, and peak memory beyond the loaded model, of one way in this process."""
    pairs = [tuple(pair) for pair in json.loads((folder / "pairs.json").read_text())]
    scorer = _scorer(folder, batch_tokens=next((budget for budget in budgets if _budget(budget) == name), None))
    # Warms up threads and allocator; and the scorer tries its first conversations both ways.
    scorer.score([pairs[0][0], pairs[0][1]])
    way = _way(name, scorer, pairs, folder)
    before = peak_bytes()
    start = time.perf_counter()
    scores = way()
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "scores": scores,
        "memory": peak_bytes() - before,
        "parameters": sum(p.numel() for part, p in scorer.model.named_parameters() if "embed" not in part),
        "gflops": matmul_gflops(),
    }


def _profile(folder: Path) -> str:
    """Return how our way spends its time, by torch's profiler, which costs some time itself."""
    sides = [side for pair in json.loads((folder / "pairs.json").read_text()) for side in pair]
    scorer = _scorer(folder)
    scorer.score(sides)
    parameters = sum(p.numel() for part, p in scorer.model.named_parameters() if "embed" not in part)
    through = _tokens_through(_tokens(folder), _OURS, budgets=[])
    with torch.profiler.profile() as profiler:
        scorer.score(sides)
    seconds = Counter({event.key: event.self_cpu_time_total / 1e6 for event in profiler.key_averages()})
    whole, products = seconds.total(), seconds["aten::mm"]
    rate = 2 * parameters * through / products / 1e9
    lines = [
        f"{len(sides)} conversations once, {through:,} tokens computed, {whole:.1f} s. Matrix products run at "
        f"{rate:.0f} GFLOP/s; this machine multiplies matrices alone at {matmul_gflops():.0f}. {circumstances(1)}",
        "",
        "| operation of torch | seconds | share |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {taken:.2f} | {taken / whole:.0%} |" for name, taken in seconds.most_common(8)),
    ]
    return "\n".join(lines)


def _way(name: str, scorer: RewardScorer, pairs: Sequence[ConversationPair], folder: Path) -> Callable[[], Scores]:
    if name in _ROWS:
        return partial(_as_rewardbench, scorer, pairs, batch_size=_ROWS[name])
    if name in _TRL_PAIRS:
        rows = Dataset.from_list([{"chosen": chosen, "rejected": rejected} for chosen, rejected in pairs])
        return partial(_as_trl, _trainer(scorer, rows, folder, batch_size=_TRL_PAIRS[name]), rows)
    return partial(scorer.score, [side for pair in pairs for side in pair])


def _as_rewardbench(scorer: RewardScorer, pairs: Sequence[ConversationPair], *, batch_size: int) -> Scores:
    tokenizer: PreTrainedTokenizerBase = scorer.tokenizer
    tokenizer.padding_side = "left"
    scores = [0.0] * (2 * len(pairs))
    for start in range(0, len(pairs), batch_size):
        batch = pairs[start : start + batch_size]
        for side in (0, 1):
            texts = [tokenizer.apply_chat_template(pair[side], tokenize=False) for pair in batch]
            inputs = tokenizer(texts, truncation=False, padding=True, return_tensors="pt", add_special_tokens=False)
            with torch.no_grad():
                logits = scorer.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
            for number, score in enumerate(logits.float().squeeze(-1).tolist()):
                scores[2 * (start + number) + side] = score
    return scores


class _KeepsScores(RewardTrainer):  # type: ignore[misc]
    """TRL's trainer, extended to keep the scores of an evaluation."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.scores: Scores = []

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        """Compute TRL's loss, and keep the scores."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
        sides: list[Tensor] = list(outputs.logits.squeeze(-1).float().chunk(2))
        self.scores += torch.stack(sides, dim=1).flatten().tolist()
        return (loss, outputs) if return_outputs else loss


def _trainer(scorer: RewardScorer, rows: Dataset, folder: Path, *, batch_size: int) -> _KeepsScores:
    arguments = RewardConfig(
        output_dir=str(folder / "out"),
        per_device_eval_batch_size=batch_size,
        max_length=MAX_LENGTH,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    few = rows.select(range(1))  # the trainer requires training rows
    return _KeepsScores(model=scorer.model, args=arguments, train_dataset=few, processing_class=scorer.tokenizer)


def _as_trl(trainer: _KeepsScores, rows: Dataset) -> Scores:
    trainer.evaluate(rows)
    return trainer.scores


def _largest_difference(found: Runs) -> float:
    """Return the largest difference between the scores of any two ways and alternations."""
    every = torch.tensor([run["scores"] for runs in found.values() for run in runs], dtype=torch.float64)
    return float((every.max(dim=0).values - every.min(dim=0).values).max())


def _padded(lengths: Sequence[int], batch_size: int) -> int:
    """Return the number of tokens of padded batches, in the order of the file."""
    batches = [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]
    return sum(len(batch) * max(batch) for batch in batches)


def _tokens_through(tokens: Sequence[Sequence[Sequence[int]]], name: str, *, budgets: Sequence[int]) -> int:
    """Return the number of tokens that a way of scoring computes, padding included."""
    if name in _ROWS:
        return sum(_padded([len(pair[side]) for pair in tokens], _ROWS[name]) for side in (0, 1))
    if name in _TRL_PAIRS:
        return 2 * _padded([max(map(len, pair)) for pair in tokens], _TRL_PAIRS[name])
    budget = next((budget for budget in budgets if _budget(budget) == name), CPU_BATCH_TOKENS)
    both = [list(side) for pair in tokens for side in pair]
    groups = shared_groups(both, max_items=_MAX_ITEMS, max_tokens=budget)
    return sum(computed_tokens([both[place] for place in group]) for group in groups)


def _text(arguments: argparse.Namespace, tokens: list[list[list[int]]], found: Runs, difference: float) -> str:
    lengths = sorted(len(side) for pair in tokens for side in pair)
    shared = sum(computed_tokens(pair) for pair in tokens)
    data = "real rows, Qwen's vocabulary" if arguments.data else "prompts 200 to 2,000 tokens, answers 100 to 600"
    parameters = found[_OURS][0]["parameters"]
    gflops = statistics.median(run["gflops"] for runs in found.values() for run in runs)

    def cells(name: str) -> tuple[list[str], list[str]]:
        through, seconds = _tokens_through(tokens, name, budgets=arguments.budgets), median(found[name], "seconds")
        rate = 2 * parameters * through / seconds / 1e9 / gflops
        return [f"{through:,}"], [f"{len(tokens) / seconds:.2f}", f"{rate:.0%}"]

    lines = [
        f"{len(tokens)} pairs ({data}), {sum(lengths):,} tokens, {lengths[0]:,} to {lengths[-1]:,} a conversation "
        f"(median {statistics.median_low(lengths):,}); {parameters / 1e6:.0f}M parameters beside the embeddings, "
        f"float32; {circumstances(arguments.rounds)}",
        f"Largest difference between the scores: {difference:.1e} (at most {_TOLERANCE:.0e}). A prompt that is "
        f"computed once for both of its answers can save no more than its tokens: {sum(lengths) / shared:.2f} times.",
        "",
        f"This machine multiplies matrices at {gflops:.0f} GFLOP/s (median, after each run); the share of it counts 2 "
        "operations per parameter and token computed, without attention.",
        "",
        *table(
            found,
            ours=_OURS,
            before=["tokens computed"],
            after=["pairs/s", "share of the matmul rate"],
            cells=cells,
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
