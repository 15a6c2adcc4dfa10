"""Time an RLOO step without generation: stock TRL beside packed completions: python -m benchmarks.rloo_speed

The same prompts, four completions each that are given instead of sampled, the same policy with adapters and the same
reward model (random weights, Qwen3 of about 25M parameters beside its embeddings, float32). Three ways take turns on
several draws of prompts, each time in its own process, whose peak memory is measured as well. A step is scoring by
the reward model, log-probabilities of policy and reference, loss, backward, and AdamW:

- TRL's trainer at its defaults: all completions in a batch, gradient checkpointing
- the same at its best on this machine, without checkpointing: 1 or more completions a batch, and the completions of one
  prompt or of both generated and padded together, whichever is the fastest on a draw that is not compared
- ours: packed completions and packed scoring

    --data FOLDER    the real vocabulary of the shared data and its texts in the same lengths, instead of random letters
    --made           rows made with a seed, for a vocabulary as wide (`made_data`), in the same lengths
    --completions N  of each prompt, instead of four
    --grpo           GRPO without a KL term, and a reward that takes no time, instead of RLOO with a reward model
    --batch N        try TRL with N completions of one prompt a batch alone, for rows that take hours otherwise
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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.made_data import folder_of
from benchmarks.provenance import commit
from benchmarks.rloo_inputs import ADAPTERS, deal, draw_folder, load, make_trainer, prepare
from benchmarks.rloo_ways import (
    COMPLETIONS,
    DEFAULT,
    LENGTHS,
    OURS,
    PPO,
    STEP_PROMPTS,
    Lengths,
    drawn_lengths,
    padding,
    settings,
)
from benchmarks.speed_inputs import matmul_gflops
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

_WANTED, _WANTED_WITH_DATA = 5.0, 10.0
# Of TRL's defaults, and of the least padding that it can be brought to.
_WANTED_GRPO = (6.0, 3.3)
_SAME = 1e-3
_FIGURES = Path(__file__).with_suffix(".md")
_MODULE = "benchmarks.rloo_speed"
_ONCE = (DEFAULT,)


def main() -> int:
    """Print a table; return 1 if gradients or rewards differ or a wanted ratio is missed."""
    transformers.utils.logging.disable_progress_bar()
    arguments, measured = _arguments(), commit()
    if arguments.measure:
        print(
            json.dumps(
                measure_way(arguments.measure, Path(arguments.folder), whole=arguments.whole, grpo=arguments.grpo)
            )
        )
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rloo-speed-")))
        data = stack.enter_context(folder_of(arguments.data)) if arguments.data or arguments.made else None
        seeds = [CALIBRATION_SEED, *arguments.seeds]
        lengths = prepare(folder, data=data, count=arguments.prompts, seeds=seeds, completions=arguments.completions)
        measure = in_its_own_process(_MODULE, [name for name in ("--whole", "--grpo") if getattr(arguments, name[2:])])
        peer = tried(_settings(arguments), folder=draw_folder(folder, CALIBRATION_SEED), measure=measure)
        folders = {seed: draw_folder(folder, seed) for seed in arguments.seeds}
        ways = [DEFAULT, peer.best, OURS]
        found = alternate(ways, folders=folders, rounds=arguments.rounds, measure=measure, once=_ONCE)
    text = _table(arguments, {seed: lengths[seed] for seed in arguments.seeds}, found, peer)
    print(text)
    if arguments.write:
        heading = chosen_rows(arguments, letters="")[0] + (", whole model" if arguments.whole else "")
        heading += ", GRPO" if arguments.grpo else ""
        heading += f", {arguments.completions} completions" if arguments.completions != COMPLETIONS else ""
        write_part(_FIGURES, text, module=_MODULE, title="RLOO step", heading=heading, measured=measured)
    wanted = {DEFAULT: _WANTED_WITH_DATA if data is not None else _WANTED}
    if arguments.grpo:
        wanted = {DEFAULT: _WANTED_GRPO[0], peer.best: _WANTED_GRPO[1]}
    fast = all(ratio(found, name, ours=OURS).median >= least for name, least in wanted.items())
    return 0 if _apart(found, peer) <= _SAME and fast else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_rows_options(parser)
    parser.add_argument("--grpo", action="store_true", help="GRPO without a reward model instead of RLOO")
    parser.add_argument("--whole", action="store_true", help="train all weights instead of adapters")
    parser.add_argument("--prompts", type=int, default=STEP_PROMPTS, help=f"of each draw, {STEP_PROMPTS} a step")
    parser.add_argument(
        "--completions", type=int, default=COMPLETIONS, help=f"of each prompt, {COMPLETIONS} unless given; even"
    )
    parser.add_argument(
        "--batch",
        type=int,
        help="try TRL with so many completions of one prompt a batch alone, instead of every setting",
    )
    add_options(parser, page=_FIGURES)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.prompts % STEP_PROMPTS:
        parser.error(f"--prompts {given.prompts}: a step has {STEP_PROMPTS} prompts; give a multiple of it.")
    if given.completions < 2 or given.completions % 2:
        parser.error(
            f"--completions {given.completions}: TRL's batches have 1 or 2 rows, or more; give an even number."
        )
    if given.batch is not None and not _settings(given):
        parser.error(f"--batch {given.batch}: TRL has no such setting for {given.completions} completions.")
    check_seeds(parser, given.seeds)
    return given


def _settings(arguments: argparse.Namespace) -> list[str]:
    """Return the names of TRL's settings that are tried."""
    found = settings(arguments.completions).items()
    return [name for name, given in found if arguments.batch is None or _is_batch(given, arguments)]


def _is_batch(setting: dict[str, Any], arguments: argparse.Namespace) -> bool:
    size = int(setting["per_device_train_batch_size"])
    return (size, size * int(setting["steps_per_generation"])) == (arguments.batch, arguments.completions)


def measure_way(way: str, folder: Path, *, whole: bool, grpo: bool = False, place: Place = CPU) -> dict[str, Any]:
    """Return one way's seconds of all steps, figures, tokens computed, and peak memory beyond the loaded models."""
    tasks, tokenizer, policy, judge = load(folder, place)
    trainer = make_trainer(way, policy, judge, tokenizer, tasks, folder, whole=whole, grpo=grpo, place=place)
    deal(trainer, tokenizer, tasks)
    tokens: Counter[str] = Counter()
    count_tokens(judge, "reward model", tokens)
    reference = trainer.step.reference if way in (OURS, PPO) else getattr(trainer, "ref_model", None)
    for model in (policy, reference):
        if model is not None:
            count_tokens(model, "policy", tokens)
            _count_head_rows(model, tokens)
    before = place.begin()
    start = time.perf_counter()
    trainer.train()
    place.end()
    seconds = time.perf_counter() - start
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "seconds": seconds,
        "memory": place.peak() - before,
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


def _apart(found: Runs, peer: Tried) -> float:
    """Return the largest relative difference of a step's gradient norm or mean reward between two ways."""
    largest = 0.0
    for of_draw in results_by_draw(found, peer):
        for figure in ("gradients", "rewards"):
            for values in zip(*(run[figure] for run in of_draw), strict=True):
                largest = max(largest, (max(values) - min(values)) / max(abs(value) for value in values))
    return largest


def _total(found: Runs, name: str, kind: str) -> int:
    """Return a way's tokens of that kind, in all draws."""
    return sum(run["tokens"].get(kind, 0) for run in found[name] if run["round"] == 1)


def _table(arguments: argparse.Namespace, draws: dict[int, Lengths], found: Runs, peer: Tried) -> str:
    _, data = chosen_rows(arguments, letters="random letters")
    every = [task for lengths in draws.values() for task in lengths]
    apart = sum(len(answers) * prompt + sum(answers) for prompt, answers in every)
    shared = sum(prompt + sum(answers) for prompt, answers in every)
    trained = "all weights" if arguments.whole else f"adapters of rank {ADAPTERS.r}"
    gflops = statistics.median(run["gflops"] for runs in found.values() for run in runs)
    counted = [
        drawn_lengths(arguments.prompts, seed=seed, completions=arguments.completions)
        for seed in range(1, arguments.counted + 1)
    ]

    def cells(name: str) -> tuple[list[str], list[str]]:
        done = sum(_operations(run, whole=arguments.whole) for run in found[name] if run["round"] == 1)
        rate = done / whole(found[name], "seconds") / 1e9 / gflops
        through = _total(found, name, "policy") + _total(found, name, "policy, trained")
        return [f"{through:,}", f"{_total(found, name, 'reward model'):,}"], [f"{rate:.0%}"]

    lines = [
        f"{arguments.prompts} prompts a draw with {arguments.completions} completions each, "
        f"{arguments.completions * STEP_PROMPTS} completions a step ({data}; "
        f"{LENGTHS}), {trained}, seeds {' '.join(map(str, draws))}; "
        f"{circumstances(arguments.rounds, draws=len(draws))}",
        f"Rows without padding have {apart:,} tokens, with each prompt once {shared:,}: {apart / shared:.2f} times. "
        f"Gradient norms and rewards differ by {_apart(found, peer):.1e} of themselves at most.",
        "",
        peer.line("TRL without checkpointing"),
        *(["Others were not tried (`--batch`)."] if arguments.batch is not None else []),
        *(
            f"Tokens of a pass, of those with each prompt once, by {name}: "
            f"{places_of([padding(one, name) for one in draws.values()], [padding(one, name) for one in counted])}."
            for name in (DEFAULT, peer.best)
        ),
        "",
        f"This machine multiplies matrices at {gflops:.0f} GFLOP/s (median, after each run); the share of it counts 2 "
        f"operations per weight and token forward and {'4' if arguments.whole else '2'} backward, and as many per word "
        "of the vocabulary and place that the head looks at, without attention and what is computed again.",
        spread_line(len(draws), once=_ONCE if arguments.rounds > 1 else ()),
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
