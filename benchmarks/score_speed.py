"""Time the scoring of pairs: ours beside `rewardbench` and TRL's evaluation: python -m benchmarks.score_speed

All score the same pairs with the same weights (random, Qwen3 of about 30M parameters, float32), from their texts on,
and must agree. They take turns on several draws of pairs, each time in its own process.
`rewardbench` 0.1.4 takes rows in file order, first the chosen sides of a batch, then the rejected ones, pads each batch
on the left to its longest, and passes the padding mask. Its `RewardBenchPipeline` cannot run unchanged on a machine
without CUDA, so its steps are repeated here. TRL's is `RewardTrainer.evaluate`. Each is measured at its default, 8 rows
or pairs a batch, and at its best: 1, 2, 4 or 8, in the order of the file or sorted by length beforehand, whichever is
the fastest on pairs that are not compared.

    --data FOLDER    real rows and the real vocabulary of the shared data, instead of random text
    --made           rows like these, made with a seed, for a vocabulary as wide (`made_data`)
    --budgets N …    our way at these tokens per forward as well, in the same rounds
    --profile        where the time of our way goes, instead of the comparison
    --write          write the output into its part of benchmarks/score_speed.md
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer

from benchmarks.made_data import folder_of
from benchmarks.provenance import commit
from benchmarks.score_peers import DEFAULTS, REWARDBENCH, SETTINGS, TokenPairs, padded_tokens, peers_way
from benchmarks.speed_inputs import (
    MAX_LENGTH,
    Conversation,
    matmul_gflops,
    pairs_of,
    save_reward_model,
)
from benchmarks.speed_ratios import (
    CALIBRATION_SEED,
    Measure,
    Runs,
    Tried,
    alternate,
    in_its_own_process,
    peak_bytes,
    places_of,
    ratio,
    results_by_draw,
    tried,
)
from benchmarks.speed_table import (
    add_options,
    add_rows_options,
    check_seeds,
    chosen_rows,
    circumstances,
    spread_line,
    table,
    whole,
    write_part,
)
from containers.models.token_batches import tokens_of_all
from containers.packing.scoring import computed_tokens, shared_groups
from containers.scoring.scorer import RewardScorer
from containers.token_budgets import CPU_BATCH_TOKENS

MODULE = "benchmarks.score_speed"

_MAX_ITEMS = 64
_TOLERANCE = 1e-4
# Ratios that are wanted on a CPU, on random text of the longer lengths.
_WANTED_OF_DEFAULT, _WANTED_OF_BEST = 5.0, 1.45
_OURS = f"**ours, {CPU_BATCH_TOKENS:,} tokens a batch (the default)**"
_FIGURES = Path(__file__).with_suffix(".md")


def main() -> int:
    """Print a table; return 1 if scores differ or a wanted ratio is missed."""
    transformers.utils.logging.disable_progress_bar()
    arguments, measured = _arguments(), commit()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure, Path(arguments.folder), budgets=arguments.budgets)))
        return 0
    budgets = [budget for budget in arguments.budgets if budget != CPU_BATCH_TOKENS]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="score-speed-")))
        data = stack.enter_context(folder_of(arguments.data)) if arguments.data or arguments.made else None
        save_reward_model(folder / "model", data=data)
        for seed in (CALIBRATION_SEED, *arguments.seeds):
            _draw(folder, seed).mkdir()
            pairs = pairs_of(data, arguments.pairs, seed=seed)
            (_draw(folder, seed) / "pairs.json").write_text(json.dumps(pairs))
        if arguments.profile:
            text = _profile(_draw(folder, arguments.seeds[0]))
            return _report(text, arguments, heading="Where the time of our way goes", measured=measured)
        measure = in_its_own_process(MODULE, ["--budgets", *map(str, budgets)])
        peers = {peer: _tried(peer, folder, measure) for peer in DEFAULTS}
        best = [found.best for found in peers.values()]
        defaults = [name for name in DEFAULTS.values() if name not in best]
        folders = {seed: _draw(folder, seed) for seed in arguments.seeds}
        ways = [*defaults, *best, _OURS, *map(_budget, budgets)]
        found = alternate(ways, folders=folders, rounds=arguments.rounds, measure=measure, once=defaults)
        tokens = {seed: _tokens(place) for seed, place in folders.items()}
        savings = _savings(folder, data, arguments, [*defaults, *best])
    difference = _largest_difference(found, peers.values())
    text = _text(arguments, tokens, found, difference, peers=peers, savings=savings)
    heading, _ = chosen_rows(arguments, letters="")
    _report(text, arguments, heading=heading, measured=measured)
    wanted = {DEFAULTS[REWARDBENCH]: _WANTED_OF_DEFAULT, peers[REWARDBENCH].best: _WANTED_OF_BEST}
    fast = all(ratio(found, name, ours=_OURS).median >= least for name, least in wanted.items())
    return 0 if difference <= _TOLERANCE and (fast or data is not None) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_rows_options(parser)
    parser.add_argument("--pairs", type=int, default=16, help="pairs of each draw; 16 unless given")
    parser.add_argument("--budgets", type=int, nargs="*", default=[], help="further tokens per forward of our way")
    parser.add_argument("--profile", action="store_true", help="where the time of our way goes, and nothing else")
    add_options(parser, page=_FIGURES)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    check_seeds(parser, given.seeds)
    return given


def _draw(folder: Path, seed: int) -> Path:
    return folder / f"draw-{seed}"


def _tried(peer: str, folder: Path, measure: Measure) -> Tried:
    settings = [name for name, setting in SETTINGS.items() if setting.peer == peer]
    return tried(settings, folder=_draw(folder, CALIBRATION_SEED), measure=measure)


def _report(text: str, arguments: argparse.Namespace, *, heading: str, measured: str) -> int:
    print(text)
    if arguments.write:
        write_part(_FIGURES, text, module=MODULE, title="Scoring pairs", heading=heading, measured=measured)
    return 0


def _budget(batch_tokens: int) -> str:
    return f"ours, {batch_tokens:,} tokens a batch"


def _scorer(folder: Path, *, batch_tokens: int | None = None) -> RewardScorer:
    scorer = RewardScorer.load(
        folder.parent / "model", device="cpu", dtype=torch.float32, max_length=MAX_LENGTH, batch_size=_MAX_ITEMS
    )
    if batch_tokens is None:
        return scorer
    return RewardScorer(
        scorer.model, scorer.tokenizer, max_length=MAX_LENGTH, batch_size=_MAX_ITEMS, batch_tokens=batch_tokens
    )


def _tokens(folder: Path) -> TokenPairs:
    return _tokens_of(folder.parent, json.loads((folder / "pairs.json").read_text()))


def _tokens_of(folder: Path, pairs: Sequence[Sequence[Conversation]]) -> TokenPairs:
    found = tokens_of_all(_tokenizer(folder), [side for pair in pairs for side in pair])
    return [list(pair) for pair in zip(found[::2], found[1::2], strict=True)]


@cache
def _tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder / "model")


def _savings(
    folder: Path, data: Path | None, arguments: argparse.Namespace, names: Sequence[str]
) -> dict[str, list[float]]:
    """Return how many times our tokens each way computes, for a draw of each of many seeds."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(1, arguments.counted + 1):
        tokens = _tokens_of(folder, pairs_of(data, arguments.pairs, seed=seed))
        for name in names:
            found[name].append(_saving(tokens, name))
    return found


def _saving(tokens: TokenPairs, name: str) -> float:
    return _tokens_through(tokens, name, budgets=[]) / _tokens_through(tokens, _OURS, budgets=[])


def _measure(name: str, folder: Path, *, budgets: Sequence[int]) -> dict[str, Any]:
    """Return the seconds, scores, and peak memory beyond the loaded model, of one way in this process."""
    pairs = [tuple(pair) for pair in json.loads((folder / "pairs.json").read_text())]
    scorer = _scorer(folder, batch_tokens=next((budget for budget in budgets if _budget(budget) == name), None))
    # Warms up threads and allocator; and the scorer tries its first conversations both ways.
    scorer.score([pairs[0][0], pairs[0][1]])
    if name in SETTINGS:
        way = peers_way(SETTINGS[name], scorer, pairs, folder)
    else:
        way = partial(scorer.score, [side for pair in pairs for side in pair])
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
    every, products = seconds.total(), seconds["aten::mm"]
    rate = 2 * parameters * through / products / 1e9
    lines = [
        f"{len(sides)} conversations once, {through:,} tokens computed, {every:.1f} s. Matrix products run at "
        f"{rate:.0f} GFLOP/s; this machine multiplies matrices alone at {matmul_gflops():.0f}. {circumstances(1)}",
        "",
        "| operation of torch | seconds | share |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {taken:.2f} | {taken / every:.0%} |" for name, taken in seconds.most_common(8)),
    ]
    return "\n".join(lines)


def _largest_difference(found: Runs, peers: Collection[Tried]) -> float:
    """Return the largest difference between the scores of any two ways and rounds, over the draws."""
    largest = 0.0
    for runs in results_by_draw(found, *peers):
        every = torch.tensor([run["scores"] for run in runs], dtype=torch.float64)
        largest = max(largest, float((every.max(dim=0).values - every.min(dim=0).values).max()))
    return largest


def _tokens_through(tokens: TokenPairs, name: str, *, budgets: Sequence[int]) -> int:
    """Return the number of tokens that a way of scoring computes, padding included."""
    if name in SETTINGS:
        return padded_tokens(tokens, SETTINGS[name])
    budget = next((budget for budget in budgets if _budget(budget) == name), CPU_BATCH_TOKENS)
    both = [list(side) for pair in tokens for side in pair]
    groups = shared_groups(both, max_items=_MAX_ITEMS, max_tokens=budget)
    return sum(computed_tokens([both[place] for place in group]) for group in groups)


def _text(
    arguments: argparse.Namespace,
    draws: Mapping[int, TokenPairs],
    found: Runs,
    difference: float,
    *,
    peers: Mapping[str, Tried],
    savings: Mapping[str, list[float]],
) -> str:
    lengths = sorted(len(side) for tokens in draws.values() for pair in tokens for side in pair)
    shared = sum(computed_tokens(pair) for tokens in draws.values() for pair in tokens)
    _, data = chosen_rows(arguments, letters="prompts 200 to 2,000 tokens, answers 100 to 600")
    parameters = found[_OURS][0]["parameters"]
    gflops = statistics.median(run["gflops"] for runs in found.values() for run in runs)
    once = [name for name in DEFAULTS.values() if name in found and len(found[name]) < len(found[_OURS])]

    def cells(name: str) -> tuple[list[str], list[str]]:
        through = sum(_tokens_through(tokens, name, budgets=arguments.budgets) for tokens in draws.values())
        seconds = whole(found[name], "seconds")
        rate = 2 * parameters * through / seconds / 1e9 / gflops
        return [f"{through:,}"], [f"{len(lengths) / 2 / seconds:.2f}", f"{rate:.0%}"]

    lines = [
        f"{arguments.pairs} pairs a draw ({data}), {sum(lengths):,} tokens in all, {lengths[0]:,} to {lengths[-1]:,} "
        f"a conversation (median {statistics.median_low(lengths):,}), seeds {' '.join(map(str, draws))}; "
        f"{parameters / 1e6:.0f}M parameters beside the embeddings, float32; "
        f"{circumstances(arguments.rounds, draws=len(draws))}",
        f"Largest difference between the scores: {difference:.1e} (at most {_TOLERANCE:.0e}). A prompt that is "
        f"computed once for both of its answers can save no more than its tokens: {sum(lengths) / shared:.2f} times.",
        "",
        *(found_best.line(peer) for peer, found_best in peers.items()),
        *(
            f"Tokens computed, of ours, by {name}: {places_of([_saving(one, name) for one in draws.values()], every)}."
            for name, every in savings.items()
        ),
        "",
        f"This machine multiplies matrices at {gflops:.0f} GFLOP/s (median, after each run); the share of it counts 2 "
        "operations per parameter and token computed, without attention.",
        spread_line(len(draws), once=once),
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
