"""Time a next attempt until it has its tokens: python -m benchmarks.kept_tokens [--data ../shared/data]

Real conversations with Qwen's own vocabulary (without --data made ones, with a vocabulary of their own), several short
ones one after the other, as pairs of a reward model. The ways alternate, each time in its own process, and do all that
train_reward_model does until it has its examples:

- a first attempt, on one thread and on all: makes the tokens, and keeps them
- the next attempt: reads them
- the pairs as text alone, which every attempt reads

    --write    write the output into benchmarks/tokenization.md
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer

from benchmarks.made_data import described, folder_of
from benchmarks.provenance import commit
from benchmarks.speed_inputs import Conversation, real_pairs, save_reward_model
from benchmarks.speed_ratios import Runs, alternate, in_its_own_process, peak_bytes, ratio
from benchmarks.speed_table import circumstances, median, write_part
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.hardware import BatchPlan, GpuProfile, RequiredContract
from containers.contracts.names import EVENTS_FILE, TRAIN_PAIRS_FILE, TUNE_PAIRS_FILE, StageName
from containers.contracts.spec import StageInput, StageSpec
from containers.data.pairs import Row, both_sides, read_pair_rows
from containers.harness.context import StageContext
from containers.harness.recorder import Recorder
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import tokens_of_all
from containers.training.examples import read_training_examples
from containers.training.token_cache import KEPT_TOKENS_FILE

_ONE, _ALL = "first attempt, one thread", "first attempt, all threads"
_NEXT, _TEXT = "next attempt", "the pairs as text alone"
_WAYS = (_ONE, _ALL, _NEXT, _TEXT)
_PAGE = Path(__file__).with_name("tokenization.md")
_MIB = 1024**2
_NUM_SHORT = 1500  # real pairs that long ones are made of
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_SCHEMA = pa.schema(
    [
        *((name, _MESSAGES) for name in ("prompt", "chosen", "rejected")),
        ("margin", pa.float32()),
        *((name, pa.string()) for name in ("domain", "language", "pair_id")),
    ]
)


def main() -> int:
    """Measure and print; with --write, write its part of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the real data; made rows without it")
    parser.add_argument("--pairs", type=int, default=20_000, help="how many; 20,000 unless given")
    parser.add_argument("--turns", type=int, default=14, help="short conversations in one prompt; 14 unless given")
    parser.add_argument("--rounds", type=int, default=3, help="alternations; 3 unless given")
    parser.add_argument("--write", action="store_true", help=f"write into {_PAGE.name}; without it, print")
    parser.add_argument("--measure", choices=_WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given, measured = parser.parse_args(), commit()
    if given.measure:
        print(json.dumps(_measured(given.measure, given.folder)))
        return 0
    with tempfile.TemporaryDirectory(prefix="kept-tokens-") as name, folder_of(given.data) as data:
        folder = Path(name)
        _prepare(folder, data, num_pairs=given.pairs, num_turns=given.turns)
        measure = in_its_own_process("benchmarks.kept_tokens")
        # The first attempt leaves what the next one reads: the order stays.
        runs = alternate(_WAYS, folders={1: folder}, rounds=given.rounds, measure=measure, in_order=True)
        file_bytes = _kept(folder).stat().st_size
    text = _said(runs, num_pairs=given.pairs, file_bytes=file_bytes, rounds=given.rounds)
    print(text)
    if given.write:
        heading = f"Read by the next attempt, {described(given.data)}"
        module, title = "benchmarks.kept_tokens", "Tokens of the pairs"
        write_part(_PAGE, text, module=module, title=title, heading=heading, measured=measured)
    return 0


def _said(runs: Runs, *, num_pairs: int, file_bytes: int, rounds: int) -> str:
    tokens = runs[_NEXT][0]["tokens"]
    lines = [
        f"{num_pairs:,} pairs of {tokens / num_pairs:,.0f} tokens on average, both sides together; the file has "
        f"{file_bytes / _MIB:,.0f} MiB. {circumstances(rounds)}",
        "",
        "| until the examples are there | seconds, median | the next attempt is faster | most memory, MiB |",
        "| --- | ---: | ---: | ---: |",
    ]
    for way, measured in runs.items():
        times = ratio(runs, way, ours=_NEXT)
        is_first = way in (_ONE, _ALL)
        faster = f"{times.median:.1f} (rounds apart by {times.clock:.0%})" if is_first else ""
        memory = median(measured, "memory") / _MIB
        lines.append(f"| {way} | {median(measured, 'seconds'):.1f} | {faster} | {memory:,.0f} |")
    return "\n".join(lines)


def _prepare(folder: Path, data: Path, *, num_pairs: int, num_turns: int) -> None:
    """Write the tokenizer and the pairs: several short real conversations as the prompt of a long one."""
    pairs = real_pairs(data, _NUM_SHORT)
    save_reward_model(folder / "model", data=data)

    def prompt(number: int) -> Conversation:
        chosen = (pairs[(number * num_turns + offset) % len(pairs)][0] for offset in range(num_turns - 1))
        return [turn for conversation in chosen for turn in conversation]

    def row(number: int) -> Row:
        chosen, rejected = pairs[number % len(pairs)]
        sides = {"chosen": chosen[-1:], "rejected": rejected[-1:]}
        rest = {"margin": 1.0, "domain": "general", "language": "english", "pair_id": str(number)}
        return {"prompt": prompt(number) + chosen[:-1], **sides, **rest}

    (folder / "pairs").mkdir()
    for file, count in ((TRAIN_PAIRS_FILE, num_pairs), (TUNE_PAIRS_FILE, 1)):
        pq.write_table(
            pa.Table.from_pylist([row(number) for number in range(count)], schema=_SCHEMA), _at(folder, file)
        )


def _measured(way: str, folder: Path) -> dict[str, float]:
    if way == _ONE:
        os.environ["RAYON_NUM_THREADS"] = "1"
    if way in (_ONE, _ALL):
        _kept(folder).unlink(missing_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    config = TrainRewardModelConfig(max_length=100_000)
    context = _context(folder, config)

    def tokenised(rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        tokens = iter(tokens_of_all(tokenizer, [side for row in rows for side in both_sides(row)], losses=losses))
        return [[{"chosen_ids": next(tokens), "rejected_ids": next(tokens)}] for _ in rows]

    started = time.perf_counter()
    if way == _TEXT:
        read_pair_rows(folder / "pairs", TRAIN_PAIRS_FILE)
        return {"seconds": time.perf_counter() - started, "tokens": 0, "memory": peak_bytes()}
    examples = read_training_examples(
        context,
        config,
        tokenizer,
        tokenised=tokenised,
        token_fields=("chosen_ids", "rejected_ids"),
        num_rows=len(tokenizer),
        unit="pairs",
    )
    seconds = time.perf_counter() - started
    tokens = sum(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in examples.train.kept)
    return {"seconds": seconds, "tokens": tokens, "memory": peak_bytes()}


def _at(folder: Path, file: str) -> Path:
    return folder / "pairs" / file


def _kept(folder: Path) -> Path:
    return folder / "work" / "checkpoints" / KEPT_TOKENS_FILE


def _context(folder: Path, config: TrainRewardModelConfig) -> StageContext:
    work = folder / "work"
    spec = StageSpec(
        stage=StageName.TRAIN_REWARD_MODEL,
        key="c" * 64,
        config=config,
        inputs=(StageInput(name="pairs", path=str(folder / "pairs"), digest="sha256:0", origin="real data"),),
        seed=7,
        profile=GpuProfile(name="cpu", num_gpus=0, precision="float32"),
        batch=BatchPlan(global_batch_size=1, per_device_batch_size=1, num_processes=1, gradient_accumulation_steps=1),
        required=RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False),
        runtime="process",
        work_path=str(work),
    )
    context = StageContext(spec=spec, work=work, recorder=Recorder(work / EVENTS_FILE))
    context.checkpoints.mkdir(parents=True, exist_ok=True)
    return context


if __name__ == "__main__":
    sys.exit(main())
