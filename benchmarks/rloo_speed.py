"""Time an RLOO step without generation: stock TRL beside packed completions: python -m benchmarks.rloo_speed

The same prompts, four completions each that are given instead of sampled, the same policy with adapters and the same
reward model (random weights, Qwen3 of about 25M parameters beside its embeddings, float32). Three ways alternate in one
run, each time in its own process, whose peak memory is measured as well. A step is scoring by the reward model,
log-probabilities of policy and reference, loss, backward, and AdamW:

- TRL's RLOOTrainer at its defaults: 8 completions a batch, gradient checkpointing
- the same at its best on a CPU: 1 completion a batch, 8 accumulated, no checkpointing
- ours: packed completions and packed scoring

    --data FOLDER    the real vocabulary of the shared data and its texts in the same lengths, instead of random letters
    --whole          train all weights, against a separate reference model, instead of adapters
    --write          write the output into its part of benchmarks/rloo_speed.md
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.rloo_inputs import (
    ADAPTERS,
    DEFAULT,
    LENGTHS,
    OURS,
    ROWS,
    STEP,
    STEP_PROMPTS,
    K,
    deal,
    load,
    make_trainer,
    prepare,
)
from benchmarks.speed_inputs import matmul_gflops
from benchmarks.speed_table import Runs, alternate, circumstances, median, peak_bytes, ratios, table, write_part

_WANTED, _WANTED_WITH_DATA = 5.0, 10.0
_SAME = 1e-3
_FIGURES = Path(__file__).with_suffix(".md")
_MODULE = "benchmarks.rloo_speed"


def main() -> int:
    """Print a table; return 1 if gradients or rewards differ or a wanted ratio is missed."""
    transformers.utils.logging.disable_progress_bar()
    arguments = _arguments()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure, Path(arguments.folder), whole=arguments.whole)))
        return 0
    with tempfile.TemporaryDirectory(prefix="rloo-speed-") as name:
        lengths = prepare(Path(name), data=arguments.data, count=arguments.prompts)
        options = ["--whole"] if arguments.whole else []
        found = alternate(list(ROWS), module=_MODULE, folder=Path(name), rounds=arguments.rounds, options=options)
    text = _table(arguments, lengths, found)
    print(text)
    if arguments.write:
        vocabulary = "Real vocabulary" if arguments.data else "Letters"
        heading = vocabulary + (", whole model" if arguments.whole else "")
        write_part(_FIGURES, text, module=_MODULE, title="RLOO step", heading=heading)
    wanted = _WANTED_WITH_DATA if arguments.data else _WANTED
    return 0 if _apart(found) <= _SAME and statistics.median(ratios(found, DEFAULT, ours=OURS)) >= wanted else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the real vocabulary and real rows")
    parser.add_argument("--whole", action="store_true", help="train all weights instead of adapters")
    parser.add_argument("--prompts", type=int, default=2 * STEP_PROMPTS, help=f"in all, {STEP_PROMPTS} a step")
    parser.add_argument("--rounds", type=int, default=3, help="alternations")
    parser.add_argument("--write", action="store_true", help=f"write the table into {_FIGURES.name}")
    parser.add_argument("--measure", choices=list(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(way: str, folder: Path, *, whole: bool) -> dict[str, Any]:
    """Return one way's seconds of all steps, figures, tokens computed, and peak memory beyond the loaded models."""
    tasks, tokenizer, policy, judge = load(folder)
    trainer = make_trainer(way, policy, judge, tokenizer, tasks, folder, whole=whole)
    deal(trainer, tokenizer, tasks)
    tokens: Counter[str] = Counter()
    count_tokens(judge, "reward model", tokens)
    for model in (policy, trainer.ref_model):
        if model is not None:
            count_tokens(model, "policy", tokens)
            _count_head_rows(model, tokens)
    before = peak_bytes()
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "seconds": seconds,
        "memory": peak_bytes() - before,
        "gradients": [entry["grad_norm"] for entry in steps],
        "rewards": [entry["reward"] for entry in steps],
        "tokens": dict(tokens),
        "parameters": parameters_of_blocks(judge),
        "head": policy.get_input_embeddings().weight.numel(),
        "gflops": matmul_gflops(),
    }


def parameters_of_blocks(model: Any) -> int:
    """Return the number of weights that every token uses: without embeddings, vocabulary head and adapters."""
    outside = ("embed", "lm_head", "lora_")
    return sum(part.numel() for name, part in model.named_parameters() if not any(word in name for word in outside))


def count_tokens(model: Any, name: str, tokens: Counter[str]) -> None:
    """Count a model's input tokens, padding included; those computed for a gradient are counted separately."""

    def count(_module: Any, given: tuple[torch.Tensor, ...], _made: torch.Tensor) -> None:
        tokens[_with_gradient(name)] += given[0].numel()

    model.get_input_embeddings().register_forward_hook(count)


def _count_head_rows(model: Any, tokens: Counter[str]) -> None:
    """Count positions that the vocabulary head computes: in a pack those that predict, else all, as in TRL."""

    def count(_module: Any, _given: tuple[Any, ...], named: dict[str, Any]) -> None:
        pack = named.get("pack")
        tokens[_with_gradient("head")] += named["input_ids"].numel() if pack is None else len(pack.targets)

    model.register_forward_pre_hook(count, with_kwargs=True)


def _with_gradient(name: str) -> str:
    return f"{name}, trained" if torch.is_grad_enabled() else name


def _operations(run: dict[str, Any], *, whole: bool) -> float:
    """Return the operations of matrix products with weights, without what checkpointing or a head repeats."""
    tokens, forward, trained = Counter(run["tokens"]), 2, 6 if whole else 4
    through_blocks = forward * (tokens["policy"] + tokens["reward model"]) + trained * tokens["policy, trained"]
    through_head = forward * tokens["head"] + trained * tokens["head, trained"]
    return float(run["parameters"] * through_blocks + run["head"] * through_head)


def _apart(found: Runs) -> float:
    """Return the largest relative difference of a step's gradient norm or mean reward between two ways."""
    largest = 0.0
    for figure in ("gradients", "rewards"):
        for values in zip(*(run[figure] for runs in found.values() for run in runs), strict=True):
            largest = max(largest, (max(values) - min(values)) / max(abs(value) for value in values))
    return largest


def _table(arguments: argparse.Namespace, lengths: list[tuple[int, list[int]]], found: Runs) -> str:
    data = "texts of real rows, Qwen's vocabulary" if arguments.data else "random letters"
    apart = sum(len(answers) * prompt + sum(answers) for prompt, answers in lengths)
    shared = sum(prompt + sum(answers) for prompt, answers in lengths)
    trained = "all weights" if arguments.whole else f"adapters of rank {ADAPTERS.r}"

    gflops = statistics.median(run["gflops"] for runs in found.values() for run in runs)

    def cells(name: str) -> tuple[list[str], list[str]]:
        tokens = found[name][0]["tokens"]
        rate = _operations(found[name][0], whole=arguments.whole) / median(found[name], "seconds") / 1e9 / gflops
        through = tokens["policy"] + tokens["policy, trained"]
        return [f"{through:,}", f"{tokens['reward model']:,}"], [f"{rate:.0%}"]

    lines = [
        f"{len(lengths)} prompts with {K} completions each, {STEP} completions a step ({data}; {LENGTHS}), "
        f"{trained}; {circumstances(arguments.rounds)}",
        f"Rows without padding have {apart:,} tokens, with each prompt once {shared:,}: {apart / shared:.2f} times. "
        f"Gradient norms and rewards differ by {_apart(found):.1e} of themselves at most.",
        "",
        f"This machine multiplies matrices at {gflops:.0f} GFLOP/s (median, after each run); the share of it counts 2 "
        f"operations per weight and token forward and {'4' if arguments.whole else '2'} backward, and as many per word "
        "of the vocabulary and place that the head looks at, without attention and what is computed again.",
        "",
        *table(
            found,
            ours=OURS,
            before=["tokens through policy and reference", "through the reward model"],
            after=["share of the matmul rate"],
            cells=cells,
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
