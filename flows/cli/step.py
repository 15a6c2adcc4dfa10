"""`rlhf step`: what the policy wrote in one step of its training, with rewards by part and advantages."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from containers.document.model import Table, heads
from flows.cli.options import Command, add_run_options, load_run
from flows.terminal import print_table, printable
from tasks.run.policy_steps import KeptSteps, Row, read_policy_steps

_EXIT_FAILED = 1
_SHOWN_STEPS = 12
_VALUE = "value_"


def _step(parsed: argparse.Namespace) -> int:
    """Print the step's prompts and completions. Returns 1 if nothing is kept yet, or nothing of that step."""
    loaded = load_run(parsed)
    kept = read_policy_steps(loaded.config)
    if kept is None:
        sys.stderr.write(
            f"No completions of {loaded.config.run.name} are kept yet: train_policy keeps some at each logging step "
            f"(train_policy.num_logged_completions). Start the run: rlhf run -c {loaded.path}\n"
        )
        return _EXIT_FAILED
    step = kept.steps[-1] if parsed.step is None else parsed.step
    if step not in kept.steps:
        sys.stderr.write(f"Of step {step} nothing is kept. The nearest is {kept.nearest(step)}; {_listed(kept)}.\n")
        return _EXIT_FAILED
    _print(kept, step, console=Console(highlight=False))
    return 0


def _print(kept: KeptSteps, step: int, *, console: Console) -> None:
    prompts = kept.prompts_of(step)
    count = sum(map(len, prompts))
    console.print(
        f"Step {step}: {count} completions of {len(prompts)} prompt(s) are kept; {_listed(kept)}.", markup=False
    )
    for number, rows in enumerate(prompts, start=1):
        first = rows[0]
        turns = "\n".join(f"{turn['role']}: {turn['content']}" for turn in first["prompt"])
        console.print(f"\nPrompt {number}\n{printable(turns)}", markup=False)
        if first.get("answer"):
            console.print(f"Reference answer: {printable(str(first['answer']))}", markup=False)
        print_table(console, _table(rows), lines=True)
    console.print(f"\nFrom {kept.source}", markup=False)


def _table(rows: Sequence[Row]) -> Table:
    """Return one line for each completion: text, reward, each term's value, advantage, length."""
    terms = [name for name in rows[0] if name.startswith(_VALUE)]
    titles = ("Reward", *(name.removeprefix(_VALUE) for name in terms), "Advantage", "Tokens")
    return Table(
        heads("Completion", *titles, numbers=len(titles)),
        tuple(
            (
                f"{row['completion']}{'' if row.get('ended') else ' [cut off]'}{_why(row)}",
                _number(row.get("reward")),
                *(_number(row.get(name)) for name in terms),
                _number(row.get("advantage")),
                f"{row.get('num_tokens', 0):,}",
            )
            for row in rows
        ),
    )


def _why(row: Row) -> str:
    return f" [no value: {row['no_value']}]" if row.get("no_value") else ""


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "—"


def _listed(kept: KeptSteps) -> str:
    """Name the kept steps; of many, the first and the last."""
    steps = kept.steps
    if len(steps) <= _SHOWN_STEPS:
        return f"kept steps: {', '.join(map(str, steps))}"
    return f"{len(steps)} steps are kept, from {steps[0]} to {steps[-1]}"


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    parser.add_argument(
        "step", nargs="?", type=int, metavar="STEP", help="step of train_policy (example: 40); left out: the last one"
    )


STEP = Command(_add_options, _step)
