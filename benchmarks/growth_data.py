"""The pipeline up to the reward model's certificate on more and more rows. Command and page: growth.py."""

import math
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.growth_plot import write_plot
from benchmarks.growth_rows import FAMILIES, ROWS_OF_A_FAMILY, write_rows
from benchmarks.overhead import DEMO, run_pipeline

ROWS = (1000, 2000, 4000, 8000, 16000, 32000)
# A run on so few rows shows the cost of a stage that does not grow with the rows.
_START_ROWS = 100
# Starts of one stage differ by about this much, so a smaller difference says nothing about its growth.
_LEAST_S = 1.0
_LOOK_EVERY_S = 0.5
_MIB = 1024**2
_SETTINGS = {
    "runtime.kind": "process",
    "tracking.mlflow_port": "0",
    "tracking.prefect_port": "0",
    "dataset.train": "data/train.jsonl",
    "dataset.validation": "data/validation.jsonl",
    "filter_dataset.policy_prompt_fraction": "0",
    "filter_dataset.minimum_train_pairs": "50",
    "train_sft": "null",
    "train_reward_model.max_length": "96",
    "train_reward_model.schedule.max_steps": "null",
    "train_reward_model.schedule.eval_steps": "null",
    "evaluate_reward_model.max_length": "96",
    "evaluate_reward_model.suites": "[{name: labelled_pairs, path: data/labelled_pairs.jsonl}]",
    "gates.reward_model": "{minimum_accuracy: 0}",
}
# Columns beside the stages.
_BESIDE = "beside the stages"


@dataclass(frozen=True)
class Growth:
    """One run: seconds by stage, seconds outside of stages, and peak memory of each stage's program in bytes."""

    rows: int
    seconds: dict[str, float]
    peaks: dict[str, int]


def measured(rows: Sequence[int], *, plot: Path | None) -> str:
    """Return the tables over runs of these numbers of training rows; draw a plot if a path for it is given.

    Raises:
        SystemExit: there are too few family names for the rows.
    """
    num_families = math.ceil(max(rows) / ROWS_OF_A_FAMILY)
    if num_families > len(FAMILIES):
        raise SystemExit(f"There are names for {len(FAMILIES) * ROWS_OF_A_FAMILY:,} rows. Ask for no more.")
    loads, runs = [os.getloadavg()[0]], []
    for count in [_START_ROWS, *sorted(rows)]:
        runs.append(_run(count, num_families=num_families))
        loads.append(os.getloadavg()[0])
        print(f"{count:,} rows: {sum(runs[-1].seconds.values()):.0f} s", file=sys.stderr, flush=True)
    if plot is not None:
        _draw(plot, runs)
    return "\n".join(_text(runs, load=f"{min(loads):.1f} to {max(loads):.1f}"))


def _run(num_rows: int, *, num_families: int) -> Growth:
    """Run the pipeline on so many rows, in a temporary folder."""
    options = [part for key, value in _SETTINGS.items() for part in ("--set", f"{key}={value}")]
    with tempfile.TemporaryDirectory(prefix="growth-data-") as name:
        folder = Path(name).resolve()
        write_rows(folder / "data", num_rows=num_rows, num_families=num_families)
        with _peaks(folder) as peaks:
            run = run_pipeline(DEMO, folder, options=[*options, "--until", "evaluate_reward_model"])
        seconds = {stage.name: stage.ended_s - stage.began_s for stage in run.stages}
        return Growth(
            num_rows,
            {**seconds, _BESIDE: run.total_s - sum(seconds.values())},
            {stage.name: peaks.get(str(stage.spec), 0) for stage in run.stages},
        )


@contextmanager
def _peaks(folder: Path) -> Iterator[dict[str, int]]:
    """Collect the peak memory in bytes of each program below the folder, by its spec, until the end."""
    peaks: dict[str, int] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    spec = (process / "cmdline").read_text().rstrip("\0").rpartition("\0")[2]
                    if not spec.startswith(str(folder)):
                        continue
                    status = (process / "status").read_text()
                except (OSError, UnicodeDecodeError):
                    continue  # it has ended, or is no program of a stage
                kib = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
                peaks[spec] = max([peaks.get(spec, 0), *(1024 * number for number in kib)])

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield peaks
    finally:
        ended.set()
        looking.join()


def exponent(rows: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Return the power of the rows with which the seconds beyond the first place grow; None with too few places.

    The slope of log seconds over log rows by least squares, both beyond the first place. Places less than a second
    beyond the first are left out.

    Example: 3, 5, 7 and 11 s on 0, 1000, 2000 and 4000 rows give 1.
    """
    beyond = [
        (math.log(count - rows[0]), math.log(took - seconds[0]))
        for count, took in zip(rows[1:], seconds[1:], strict=True)
        if took - seconds[0] >= _LEAST_S
    ]
    if len(beyond) < 2:
        return None
    return statistics.linear_regression(*zip(*beyond, strict=True)).slope


def _text(runs: Sequence[Growth], *, load: str) -> Iterator[str]:
    stages = list(runs[0].seconds)
    versions = ", ".join(f"{name} {version(name)}" for name in ("prefect", "mlflow", "torch", "transformers"))
    yield f"""`rlhf run --until evaluate_reward_model` on rows like the demo's, with its model, without fine-tuning, for
one epoch with ten validations, each stage as a process; an eighth as many validation rows as training rows, the
labelled pairs as in the demo. Each run once, in a fresh folder. Seconds; in brackets those beyond the run on
{runs[0].rows} rows, for each 1,000 rows more. "Power": with this power of the rows the seconds beyond that run grow
(slope of the logarithms by least squares; 1 is as the data). Places less than {_LEAST_S:g} s beyond it are left out;
"–": fewer than two were more.

Load average {load} while it ran;
{versions}.

| training rows | {" | ".join(stages)} | all |
| ---: |{" ---: |" * (len(stages) + 1)}"""
    for run in runs:
        cells = [_seconds(run, runs[0], stage) for stage in stages]
        yield f"| {run.rows:,} | {' | '.join(cells)} | {sum(run.seconds.values()):.0f} |"
    powers = [exponent([run.rows for run in runs], [run.seconds[stage] for run in runs]) for stage in stages]
    yield f"| **power** | {' | '.join('–' if power is None else f'**{power:.2f}**' for power in powers)} | |"
    programs = list(runs[0].peaks)
    yield f"""
The most memory that a stage's program had, MiB (`VmHWM`, looked at every {_LOOK_EVERY_S:g} s):

| training rows | {" | ".join(programs)} |
| ---: |{" ---: |" * len(programs)}"""
    for run in runs:
        yield f"| {run.rows:,} | {' | '.join(f'{run.peaks[stage] / _MIB:,.0f}' for stage in programs)} |"


def _seconds(run: Growth, start: Growth, stage: str) -> str:
    """Return the stage's seconds, with those beyond the start for each 1,000 rows more."""
    shown = f"{run.seconds[stage]:.1f}"
    if run is start:
        return shown
    return f"{shown} ({(run.seconds[stage] - start.seconds[stage]) / (run.rows - start.rows) * 1000:.2f})"


def _draw(path: Path, runs: Sequence[Growth]) -> None:
    """Plot the seconds beyond the start; the guide grows as the data does."""
    start, more = runs[0], runs[1:]
    lines = {}
    for stage in start.seconds:
        beyond = [(run.rows, run.seconds[stage] - start.seconds[stage]) for run in more]
        kept = [(rows, seconds) for rows, seconds in beyond if seconds >= _LEAST_S]
        if kept:
            lines[stage] = ([rows for rows, _ in kept], [seconds for _, seconds in kept])
    rows = [run.rows for run in more]
    guide = {"as the data": (rows, [_LEAST_S * count / rows[0] for count in rows])}
    write_plot(path, lines, guide=guide, along="training rows", up=f"seconds beyond the run on {start.rows} rows")
