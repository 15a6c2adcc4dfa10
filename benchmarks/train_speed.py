"""Time a reward-model training step: stock TRL beside packed pairs: python -m benchmarks.train_speed

The same pairs, weights (random, Qwen3 of about 25M parameters beside its embeddings) and optimizer step in four ways.
They alternate in one run, each time in its own process, whose peak memory is measured. All but the first use float32:

- TRL's RewardTrainer unchanged: bf16, 8 pairs a batch, gradient checkpointing; it computes other numbers
- the same at its defaults but for the precision
- the same at its best on a CPU: 1 pair a batch, 8 accumulated, no checkpointing
- ours: packed pairs

    --data FOLDER    real rows and the real vocabulary of the shared data, instead of random text
    --write          write the output into its part of benchmarks/train_speed.md
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig

from benchmarks.speed_inputs import (
    MAX_LENGTH,
    ConversationPair,
    matmul_gflops,
    random_pairs,
    real_pairs,
    save_reward_model,
)
from benchmarks.speed_table import Runs, alternate, circumstances, median, peak_bytes, ratios, table, write_part
from containers.algorithms.reward_model import PackedPairTrainer, PairTrainer
from containers.algorithms.reward_model_packing import attention_of
from containers.packing.trees import common_prefix
from containers.scoring.scorer import conversation_tokens
from containers.token_budgets import CPU_PACK_TOKENS

TokenPair = tuple[list[int], list[int]]
MODULE = "benchmarks.train_speed"
STOCK, DEFAULT, TUNED, OURS = "TRL as it stands, in bf16", "TRL, its defaults but float32", "TRL, tuned", "ours"
STEP_PAIRS = 8
_WANTED = {DEFAULT: 8.0, TUNED: 1.6}
_SAME = 1e-4
_FIGURES = Path(__file__).with_suffix(".md")
_DEFAULTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "gradient_checkpointing": True}
_ROWS: dict[str, dict[str, Any]] = {
    STOCK: {**_DEFAULTS, "bf16": None},
    DEFAULT: _DEFAULTS,
    TUNED: {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "gradient_checkpointing": False},
    OURS: {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "gradient_checkpointing": False},
}


def main() -> int:
    """Print a table; return 1 if losses differ or a wanted ratio is missed."""
    transformers.utils.logging.disable_progress_bar()
    arguments = _arguments()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure, Path(arguments.folder))))
        return 0
    with tempfile.TemporaryDirectory(prefix="train-speed-") as name:
        folder = Path(name)
        pairs = real_pairs(arguments.data, arguments.pairs) if arguments.data else random_pairs(arguments.pairs)
        tokens = prepare(folder, pairs, data=arguments.data)
        found = alternate(list(_ROWS), module=MODULE, folder=folder, rounds=arguments.rounds)
    text = _table(arguments, tokens, found)
    print(text)
    if arguments.write:
        heading = "Real rows" if arguments.data else "Random text"
        write_part(_FIGURES, text, module=MODULE, title="Reward-model training step", heading=heading)
    losses = _losses(found)
    fast = all(statistics.median(ratios(found, name, ours=OURS)) >= wanted for name, wanted in _WANTED.items())
    return 0 if max(losses) - min(losses) <= _SAME and (fast or arguments.data is not None) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with real rows and the real vocabulary")
    parser.add_argument("--pairs", type=int, default=STEP_PAIRS, help=f"pairs in all, {STEP_PAIRS} a step")
    parser.add_argument("--rounds", type=int, default=3, help="alternations")
    parser.add_argument("--write", action="store_true", help=f"write the table into {_FIGURES.name}")
    parser.add_argument("--measure", choices=list(_ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def prepare(folder: Path, pairs: Sequence[ConversationPair], *, data: Path | None = None) -> list[TokenPair]:
    """Write a model and the tokens of the pairs into the folder, for the processes that measure; return the tokens.

    Args:
        data: folder with Qwen's own vocabulary; None: a vocabulary of letters.
    """
    save_reward_model(folder / "model", pairs, data=data)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokens = [(conversation_tokens(tokenizer, a), conversation_tokens(tokenizer, b)) for a, b in pairs]
    (folder / "tokens.json").write_text(json.dumps(tokens))
    return tokens


def _measure(way: str, folder: Path) -> dict[str, float]:
    """Return the seconds of all steps, mean loss, and peak memory beyond the loaded model, of one way."""
    rows = [{"chosen_ids": a, "rejected_ids": b} for a, b in json.loads((folder / "tokens.json").read_text())]
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    model(input_ids=torch.tensor([[5] * 64])).logits.sum().backward()  # warm up threads and allocator
    model.zero_grad()
    trainer = _trainer(way, model, rows, folder)
    before = peak_bytes()
    with attention_of(trainer):
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "seconds": seconds,
        "loss": statistics.mean(losses),
        "memory": peak_bytes() - before,
        "parameters": sum(weights.numel() for name, weights in model.named_parameters() if "embed" not in name),
        "gflops": matmul_gflops(),
    }


def _trainer(way: str, model: Any, rows: list[dict[str, list[int]]], folder: Path) -> PairTrainer:
    kind, more = (PackedPairTrainer, {"pack_tokens": CPU_PACK_TOKENS}) if way == OURS else (PairTrainer, {})
    arguments = RewardConfig(
        output_dir=str(folder / "out"),
        max_steps=len(rows) // STEP_PAIRS,
        max_length=MAX_LENGTH,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{"bf16": False, **_ROWS[way]},
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    return kind(
        zero_sum_penalty=0.0,
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        **more,
    )


def tokens_computed(tokens: Sequence[TokenPair], name: str) -> int:
    """Return the number of tokens computed in an epoch, padding included; order as in the file."""
    if name == OURS:
        return sum(len(a) + len(b) - common_prefix((a, b)) for a, b in tokens)
    size = _ROWS[name]["per_device_train_batch_size"]
    batches = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    return sum(2 * len(batch) * max(len(side) for pair in batch for side in pair) for batch in batches)


def matmul_share(found: Runs, tokens: Sequence[TokenPair], name: str) -> float:
    """Return the way's operations per second, as a share of those of matrix products alone on this machine."""
    runs = found[name]
    done = 6 * runs[0]["parameters"] * tokens_computed(tokens, name)
    return float(done / median(runs, "seconds") / 1e9 / _gflops(found))


def matmul_line(found: Runs) -> str:
    """Return a sentence on the base of that share, and on what it counts."""
    return (
        f"This machine multiplies matrices at {_gflops(found):.0f} GFLOP/s (median, after each training); the share of "
        "it counts 6 operations per parameter and token computed, without attention and without what checkpointing "
        "computes again."
    )


def _losses(found: Runs) -> list[float]:
    """Return the losses of all ways in float32, which must be the same."""
    return [run["loss"] for name, runs in found.items() if name != STOCK for run in runs]


def _gflops(found: Runs) -> float:
    return float(statistics.median(run["gflops"] for runs in found.values() for run in runs))


def _table(arguments: argparse.Namespace, tokens: list[TokenPair], found: Runs) -> str:
    real = sum(len(a) + len(b) for a, b in tokens)
    ours = tokens_computed(tokens, OURS)
    data = "real rows, Qwen's vocabulary" if arguments.data else "prompts 200 to 2,000 tokens, answers 100 to 600"
    losses = _losses(found)
    apart = max(abs(run["loss"] - losses[0]) for run in found[STOCK])

    def cells(name: str) -> tuple[list[str], list[str]]:
        return [f"{tokens_computed(tokens, name):,}"], [f"{matmul_share(found, tokens, name):.0%}"]

    lines = [
        f"{len(tokens)} pairs, {STEP_PAIRS} a step ({data}), {real:,} tokens; {circumstances(arguments.rounds)}",
        f"Without padding, a shared prompt can save no more than its tokens: {real / ours:.2f} times. Losses differ by "
        f"{max(losses) - min(losses):.1e}; that in bf16 is {apart:.1e} apart.",
        "",
        matmul_line(found),
        "",
        *table(found, ours=OURS, before=["tokens computed"], after=["share of the matmul rate"], cells=cells),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
