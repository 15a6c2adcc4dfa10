"""Time a reward-model training step: stock TRL beside packed pairs: python -m benchmarks.train_speed

The same pairs, weights (random, Qwen3 of about 25M parameters beside its embeddings) and optimizer steps in four ways,
on several draws of pairs, turn about, each time in its own process, whose peak memory is measured. All but the first
use float32:

- TRL's RewardTrainer unchanged: bf16, 8 pairs a batch, gradient checkpointing; it computes other numbers
- the same at its defaults but for the precision
- the same at its best on this machine, without checkpointing: 1, 2, 4 or 8 pairs a batch, in the order of the data or
  sorted by length within the step (the same gradients), whichever is the fastest on a draw that is not compared
- ours: packed pairs

    --data FOLDER    real rows and the real vocabulary of the shared data, instead of random text
    --made           rows like these, made with a seed, for a vocabulary as wide (`made_data`)
    --write          write the output into its part of benchmarks/train_speed.md
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig

from benchmarks.made_data import folder_of
from benchmarks.provenance import commit
from benchmarks.speed_inputs import (
    MAX_LENGTH,
    ConversationPair,
    matmul_gflops,
    pairs_of,
    save_reward_model,
)
from benchmarks.speed_place import CPU, Place
from benchmarks.speed_ratios import (
    CALIBRATION_SEED,
    Runs,
    Tried,
    alternate,
    in_its_own_process,
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
from containers.algorithms.reward_model import PackedPairTrainer, PairTrainer
from containers.algorithms.reward_model_packing import attention_of
from containers.models.token_batches import tokens_of_all
from containers.packing.trees import common_prefix
from containers.token_budgets import CPU_PACK_TOKENS

TokenPair = tuple[list[int], list[int]]
# Name of a way → its tokens over ours, for many seeds.
Savings = dict[str, list[float]]
MODULE = "benchmarks.train_speed"
STOCK, DEFAULT, OURS = "TRL as it stands, in bf16", "TRL, its defaults but float32", "ours"
STEP_PAIRS = 8
_WANTED_OF_DEFAULT, _WANTED_OF_BEST = 8.0, 1.6
_SAME = 1e-4
_FIGURES = Path(__file__).with_suffix(".md")
SORTED = ", sorted by length"
_DEFAULTS = {"per_device_train_batch_size": STEP_PAIRS, "gradient_accumulation_steps": 1}


def _setting(size: int, *, by_length: bool = False) -> str:
    return f"TRL, {size} pair{'' if size == 1 else 's'} a batch{SORTED if by_length else ''}"


# With one pair a batch, or all in one, there is nothing to sort.
SETTINGS = {
    _setting(size, by_length=by_length): {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": STEP_PAIRS // size,
        "gradient_checkpointing": False,
    }
    for size in (1, 2, 4, 8)
    for by_length in (False, True)
    if not by_length or 1 < size < STEP_PAIRS
}
_ROWS: dict[str, dict[str, Any]] = {
    STOCK: {**_DEFAULTS, "gradient_checkpointing": True, "bf16": None},
    DEFAULT: {**_DEFAULTS, "gradient_checkpointing": True},
    **SETTINGS,
    OURS: {**_DEFAULTS, "gradient_checkpointing": False},
}
_ONCE = (STOCK, DEFAULT)


def settings_of(*sizes: int) -> list[str]:
    """Return the names of TRL's settings with so many pairs a batch, in the order of the data."""
    return [_setting(size) for size in sizes]


def main() -> int:
    """Print a table; return 1 if losses differ or a wanted ratio is missed."""
    transformers.utils.logging.disable_progress_bar()
    arguments, measured = _arguments(), commit()
    if arguments.measure:
        print(json.dumps(measure_way(arguments.measure, Path(arguments.folder))))
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="train-speed-")))
        data = stack.enter_context(folder_of(arguments.data)) if arguments.data or arguments.made else None
        save_reward_model(folder / "model", data=data)
        seeds = [CALIBRATION_SEED, *arguments.seeds]
        tokens = {seed: prepare(folder, pairs_of(data, arguments.pairs, seed=seed), draw=seed) for seed in seeds}
        measure = in_its_own_process(MODULE)
        peer = tried(list(SETTINGS), folder=draw_folder(folder, CALIBRATION_SEED), measure=measure)
        savings = _savings(folder, data, arguments, [DEFAULT, peer.best])
        folders = {seed: draw_folder(folder, seed) for seed in arguments.seeds}
        ways = [STOCK, DEFAULT, peer.best, OURS]
        found = alternate(ways, folders=folders, rounds=arguments.rounds, measure=measure, once=_ONCE)
    compared = {seed: tokens[seed] for seed in arguments.seeds}
    text = _table(arguments, compared, savings, found, peer)
    print(text)
    if arguments.write:
        heading, _ = chosen_rows(arguments, letters="")
        title = "Reward-model training step"
        write_part(_FIGURES, text, module=MODULE, title=title, heading=heading, measured=measured)
    wanted = {DEFAULT: _WANTED_OF_DEFAULT, peer.best: _WANTED_OF_BEST}
    fast = all(ratio(found, name, ours=OURS).median >= least for name, least in wanted.items())
    return 0 if spread_of_losses(found, peer) <= _SAME and (fast or data is not None) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_rows_options(parser)
    parser.add_argument("--pairs", type=int, default=STEP_PAIRS, help=f"pairs of each draw, {STEP_PAIRS} a step")
    add_options(parser, page=_FIGURES)
    parser.add_argument("--measure", choices=list(_ROWS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pairs % STEP_PAIRS:
        parser.error(f"--pairs {given.pairs}: a step has {STEP_PAIRS} pairs; give a multiple of it.")
    check_seeds(parser, given.seeds)
    return given


def draw_folder(folder: Path, draw: int) -> Path:
    """Return where the tokens of that batch are, beside the model that all draws share."""
    return folder / f"draw-{draw}"


def prepare(folder: Path, pairs: Sequence[ConversationPair], *, draw: int) -> list[TokenPair]:
    """Write the tokens of the pairs as that draw, for the processes that measure; return them."""
    tokens = _tokens(folder, pairs)
    place = draw_folder(folder, draw)
    place.mkdir(exist_ok=True)
    (place / "tokens.json").write_text(json.dumps(tokens))
    return tokens


def _tokens(folder: Path, pairs: Sequence[ConversationPair]) -> list[TokenPair]:
    found = tokens_of_all(_tokenizer(folder), [side for pair in pairs for side in pair])
    return [(list(a), list(b)) for a, b in zip(found[::2], found[1::2], strict=True)]


@cache
def _tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder / "model")


def _savings(folder: Path, data: Path | None, arguments: argparse.Namespace, names: Sequence[str]) -> Savings:
    """Return how many times our tokens these ways compute, for a draw of each of many seeds."""
    found: Savings = {name: [] for name in names}
    for seed in range(1, arguments.counted + 1):
        tokens = _tokens(folder, pairs_of(data, arguments.pairs, seed=seed))
        for name, values in found.items():
            values.append(_saving(tokens, name))
    return found


def _saving(tokens: Sequence[TokenPair], name: str) -> float:
    return tokens_computed(tokens, name) / tokens_computed(tokens, OURS)


def measure_way(way: str, folder: Path, place: Place = CPU) -> dict[str, float]:
    """Return the seconds of all steps, mean loss, and peak memory beyond the loaded model, of one way."""
    tokens = _in_order(way, json.loads((folder / "tokens.json").read_text()))
    rows = [{"chosen_ids": a, "rejected_ids": b} for a, b in tokens]
    model = AutoModelForSequenceClassification.from_pretrained(folder.parent / "model").to(place.device)
    model(
        input_ids=torch.tensor([[5] * 64], device=place.device)
    ).logits.sum().backward()  # warm up threads and allocator
    model.zero_grad()
    trainer = _trainer(way, model, rows, folder, place)
    before = place.begin()
    with attention_of(trainer):
        start = time.perf_counter()
        trainer.train()
        place.end()
        seconds = time.perf_counter() - start
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "seconds": seconds,
        "loss": statistics.mean(losses),
        "memory": place.peak() - before,
        "parameters": sum(weights.numel() for name, weights in model.named_parameters() if "embed" not in name),
        "gflops": matmul_gflops(),
    }


def _in_order(way: str, tokens: Sequence[TokenPair]) -> list[TokenPair]:
    """Return the pairs in the way's order: as they are, or by the longer side within each step."""
    if not way.endswith(SORTED):
        return list(tokens)
    steps = [tokens[start : start + STEP_PAIRS] for start in range(0, len(tokens), STEP_PAIRS)]
    return [pair for step in steps for pair in sorted(step, key=lambda pair: max(map(len, pair)))]


def _trainer(way: str, model: Any, rows: list[dict[str, list[int]]], folder: Path, place: Place) -> PairTrainer:
    pack_tokens = place.pack_tokens or CPU_PACK_TOKENS
    kind, more = (PackedPairTrainer, {"pack_tokens": pack_tokens}) if way == OURS else (PairTrainer, {})
    arguments = RewardConfig(
        output_dir=str(folder / "out"),
        max_steps=len(rows) // STEP_PAIRS,
        max_length=MAX_LENGTH,
        train_sampling_strategy="sequential",  # every way has the same pairs in a step
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **{**place.arguments, **_ROWS[way]},
    )
    tokenizer = AutoTokenizer.from_pretrained(folder.parent / "model")
    return kind(
        zero_sum_penalty=0.0,
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        **more,
    )


def tokens_computed(tokens: Sequence[TokenPair], name: str) -> int:
    """Return the number of tokens computed in an epoch, padding included."""
    if name == OURS:
        return sum(len(a) + len(b) - common_prefix((a, b)) for a, b in tokens)
    size, ordered = _ROWS[name]["per_device_train_batch_size"], _in_order(name, tokens)
    batches = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return sum(2 * len(batch) * max(len(side) for pair in batch for side in pair) for batch in batches)


def matmul_share(found: Runs, draws: Mapping[int, Sequence[TokenPair]], name: str) -> float:
    """Return the way's operations per second, as a share of those of matrix products alone on this machine."""
    done = 6 * found[name][0]["parameters"] * sum(tokens_computed(tokens, name) for tokens in draws.values())
    return float(done / whole(found[name], "seconds") / 1e9 / _gflops(found))


def matmul_line(found: Runs) -> str:
    """Return a sentence on the base of that share, and on what it counts."""
    return (
        f"This machine multiplies matrices at {_gflops(found):.0f} GFLOP/s (median, after each training); the share of "
        "it counts 6 operations per parameter and token computed, without attention and without what checkpointing "
        "computes again."
    )


def spread_of_losses(found: Runs, peer: Tried) -> float:
    """Return how far apart the losses of a draw are; all ways in float32 must have the same."""
    exact = {name: runs for name, runs in found.items() if name != STOCK}
    of_draws = ([run["loss"] for run in runs] for runs in results_by_draw(exact, peer))
    return float(max(max(losses) - min(losses) for losses in of_draws))


def _gflops(found: Runs) -> float:
    return float(statistics.median(run["gflops"] for runs in found.values() for run in runs))


def _table(
    arguments: argparse.Namespace,
    draws: Mapping[int, list[TokenPair]],
    savings: Savings,
    found: Runs,
    peer: Tried,
) -> str:
    real = sum(len(a) + len(b) for tokens in draws.values() for a, b in tokens)
    ours = sum(tokens_computed(tokens, OURS) for tokens in draws.values())
    _, data = chosen_rows(arguments, letters="prompts 200 to 2,000 tokens, answers 100 to 600")
    of_draw = {run["draw"]: run["loss"] for run in found[OURS]}
    apart = max(abs(run["loss"] - of_draw[run["draw"]]) for run in found[STOCK])

    def cells(name: str) -> tuple[list[str], list[str]]:
        computed = sum(tokens_computed(tokens, name) for tokens in draws.values())
        return [f"{computed:,}"], [f"{matmul_share(found, draws, name):.0%}"]

    lines = [
        f"{arguments.pairs} pairs a draw, {STEP_PAIRS} a step ({data}), {real:,} tokens in all, seeds "
        f"{' '.join(map(str, draws))}; {circumstances(arguments.rounds, draws=len(draws))}",
        f"Without padding, a shared prompt can save no more than its tokens: {real / ours:.2f} times. Losses of a "
        f"draw differ by {spread_of_losses(found, peer):.1e}; that in bf16 is {apart:.1e} apart.",
        "",
        peer.line("TRL without checkpointing"),
        *(
            f"Tokens computed, of ours, by {name}: {places_of([_saving(one, name) for one in draws.values()], every)}."
            for name, every in savings.items()
        ),
        "",
        matmul_line(found),
        spread_line(len(draws), once=_ONCE if arguments.rounds > 1 else ()),
        "",
        *table(found, ours=OURS, before=["tokens computed"], after=["share of the matmul rate"], cells=cells),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
