"""Measure what faults cost a run, and check that its result is the same. `make chaos`, or

    python -m benchmarks.chaos [--minutes 2] [--seed 7] [--ranks 1] [--times 1] [--demo] [--write]

A pipeline of a minute (every stage of tests/faults/tiny_project.py, on a processor, in processes), or with `--demo`
that of `make demo`, runs once without faults. Then it runs again and again, each time in its own store on a small disk,
with faults at random moments: `kill -9`, SIGSTOP, a full disk, servers that die and come back. The seed determines the
faults and their times; their list is printed first. When the command ends, the benchmark starts it again, as a user
would. When the time is up, the last run goes on without faults to its end.

At the end it prints for each kind of fault how long the run needed until its first new work (recovery), and how many
steps of training it repeated. For the whole it prints the share of useful time (goodput: seconds of the run without
faults, by seconds of one with them). Exit code 1 if weights or curves differ by a bit from the run without faults, or a
process of a run is alive after its end.
"""

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.chaos_events import DISK, FOR_GOOD, KILL_ORCHESTRATOR, KINDS, ONE_RANK, Event, Scene, schedule
from benchmarks.chaos_run import PAUSE_S, TRAINED, Run, left_alive, undisturbed
from benchmarks.provenance import PROJECT, commit, when_and_where
from containers.contracts.configs.parts.training import TrainingSchedule
from flows.demo.rows import write_demo_data
from tasks.config.loading import load_run_config
from tests.faults.mortal_server import Mlflow, Prefect
from tests.faults.tiny_project import WITH_SFT, TinyProject

PAGES = PROJECT / "docs" / "proofs"
_DISK_MIB = 512
_SILENCE_LIMIT_S = 60
# From this duration on, there is time for faults that only a limit on silence ends.
_MINUTES_FOR_GOOD = 20
# A run with faults that takes more than this many times as long as one without hangs.
_RUN_LIMIT = 20
# Fewer faults a minute mean that they found no target: nothing was tried.
_FEWEST_A_MINUTE = 0.4
_ALL_EQUAL = "Weights and curves of every run are those of the run without faults, bit for bit, and nothing is alive."


@dataclass(frozen=True)
class Cost:
    """The cost of one fault."""

    event: Event
    recovery_s: float
    steps_again: int
    starts_again: int


@contextmanager
def small_disk(folder: Path) -> Iterator[str]:
    """Mount a file system of a few hundred MiB at that folder; yields why that failed, empty if it worked."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    try:
        yield (done.stderr.strip() or "mount failed") if done.returncode else ""
    finally:
        if not done.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607 - as `mount`


def put_and_watch(run: Run, scene: Scene, event: Event) -> Cost | None:
    """Wait, cause the fault, and go on until the run has done new work. None: the run ended before the fault."""
    until = time.monotonic() + event.wait_s
    while time.monotonic() < until:
        if not run.go_on():
            return None
        time.sleep(PAUSE_S)
    while True:
        again, starts, clock, programs = run.steps_again(), run.starts, time.monotonic(), run.programs()
        if scene.put(event):
            break
        if not run.go_on():
            return None
        time.sleep(PAUSE_S)
    if event.kind == KILL_ORCHESTRATOR:
        run.wait_for_kill()  # for a moment it still seems to live and own its programs
    # A program whose orchestrator was killed still ends its step: that is no recovery.
    while "kill" in event.kind and run.go_on() and run.ends(programs):
        time.sleep(PAUSE_S)
    before = run.progress()
    while run.go_on() and run.progress() <= before:
        time.sleep(PAUSE_S)
    return Cost(event, time.monotonic() - clock, run.steps_again() - again, run.starts - starts)


def table(costs: Sequence[Cost], kinds: Sequence[str]) -> Iterator[str]:
    """Yield a line for each kind of fault, and one for all."""
    yield "| fault | times | recovery, s: median | most | steps done again: mean | most | command started again |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for kind in (*kinds, "all"):
        found = [cost for cost in costs if kind in (cost.event.kind, "all")]
        if not found:
            yield f"| {kind} | 0 | – | – | – | – | – |"
            continue
        recoveries, again = [cost.recovery_s for cost in found], [cost.steps_again for cost in found]
        yield (
            f"| {kind} | {len(found)} | {statistics.median(recoveries):.1f} | {max(recoveries):.1f} "
            f"| {statistics.mean(again):.1f} | {max(again)} | {sum(cost.starts_again for cost in found)} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="for how long faults come; 2 unless given")
    parser.add_argument("--seed", type=int, default=7, help="of which faults come when; 7 unless given")
    parser.add_argument("--ranks", type=int, default=1, help="processes of a training; from 2 on one of them is killed")
    parser.add_argument("--times", type=int, default=1, help="as many steps of training as usual; once unless given")
    parser.add_argument("--demo", action="store_true", help="the demo's own pipeline, not the smaller one of the tests")
    parser.add_argument("--write", action="store_true", help="write the page in docs/proofs as well")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        return chaos(Path(scratch).resolve(), stack, given=given)


def chaos(scratch: Path, stack: ExitStack, *, given: argparse.Namespace) -> int:
    """Return 0 if every run has the result of the one without faults, and left no process."""
    measured, no_disk = commit(), stack.enter_context(small_disk(scratch / "disk"))
    kinds, left_out = chosen_kinds(given, no_disk=no_disk)
    print(f"Seed {given.seed}. As many of these as {given.minutes:g} minutes hold:")
    for event in islice(schedule(given.seed, kinds), math.ceil(given.minutes * 6)):
        print(event)
    print("\n".join(left_out), flush=True)
    mlflow, prefect = Mlflow(scratch / "servers"), Prefect(scratch / "servers")
    for server in (mlflow, prefect):
        stack.callback(server.stop)
        server.start()
    settings: tuple[str, ...] = (
        f"tracking.prefect_api_url={prefect.api_url}",
        f"tracking.mlflow_uri={mlflow.uri}",
        f"runtime.silence_limit_s={_SILENCE_LIMIT_S}",
        f"gpu_profile.num_processes={given.ranks}",
        # Programs in containers are no children of the orchestrator, so no fault could reach them.
        "runtime.kind=process",
    )
    disk, tiny = scratch / "disk", TinyProject.make(scratch / "project", PROJECT)
    write_demo_data(tiny.folder / "outputs/demo/data")
    config = "configs/runs/demo.yaml" if given.demo else "configs/runs/tiny.yaml"
    settings += () if given.demo else (WITH_SFT,)
    trainings = schedules(tiny.folder / config, settings)
    settings += tuple(longer_trainings(given.times, trainings))
    reference = Run(tiny, config, "undisturbed", disk / "undisturbed", settings)
    undisturbed(reference)
    wanted, num_steps = reference.made(), reference.num_steps()
    shutil.rmtree(reference.folder)
    print(f"Without faults: {reference.took_s:.0f} s, started {reference.starts} times.", flush=True)

    costs: list[Cost] = []
    wrong: list[str] = []
    ended: list[Run] = []
    # More faults than there is time for; a fault whose run has ended waits for the next run.
    events = deque(islice(schedule(given.seed, kinds), math.ceil(given.minutes * 60)))
    deadline = time.monotonic() + given.minutes * 60
    while time.monotonic() < deadline:
        name = f"chaos-{len(ended) + 1}"
        run = Run(tiny, config, name, disk / name, settings, given.minutes * 60 + _RUN_LIMIT * reference.took_s)
        costs += disturbed(run, Scene(run.orchestrator, mlflow, prefect, disk), events, deadline=deadline)
        ended.append(run)
        problems = [
            f"{stage} is not what it is without faults" for stage in wanted if run.made()[stage] != wanted[stage]
        ]
        problems += [f"alive after its end: {process}" for process in left_alive(run)]
        wrong += [f"{run.name}: {what}." for what in problems]
        print(f"{run.name}: {run.took_s:.0f} s, started {run.starts} times, {len(problems)} things wrong", flush=True)
        shutil.rmtree(run.folder)

    if len(costs) < given.minutes * _FEWEST_A_MINUTE:
        wrong.append(
            f"Only {len(costs)} faults in {given.minutes:g} minutes: the next one, {events[0]}, found no target."
        )
    all_s = sum(run.took_s for run in ended)
    goodput = reference.took_s * len(ended) / all_s
    head = (
        f"Runs: {len(ended)}, with {len(costs)} faults, {all_s:.0f} s. One without faults takes "
        f"{reference.took_s:.0f} s, and {num_steps} steps of training. Goodput {goodput:.0%}."
    )
    text = "\n".join((head, "", *table(costs, kinds), "", *(wrong or [_ALL_EQUAL])))
    print(f"\n{text}", flush=True)
    if given.write:
        PAGES.mkdir(parents=True, exist_ok=True)
        name = "chaos" + ("-demo" if given.demo else "") + (f"-{given.ranks}-ranks" if given.ranks > 1 else "")
        (PAGES / f"{name}.md").write_text(page(text, saved(trainings), left_out, measured=measured), encoding="utf-8")
    return 1 if wrong else 0


def chosen_kinds(given: argparse.Namespace, *, no_disk: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the kinds of faults that are possible here, and a line for each that is left out.

    Args:
        no_disk: why there is no small disk; empty if there is one.
    """
    kinds = tuple(kind for kind in KINDS if kind != DISK or not no_disk)
    kinds += (ONE_RANK,) if given.ranks > 1 else ()
    kinds += (FOR_GOOD,) if given.minutes >= _MINUTES_FOR_GOOD else ()
    left_out = [] if not no_disk else [f"`{DISK}` was left out: a small disk cannot be mounted here ({no_disk})."]
    left_out += [] if FOR_GOOD in kinds else [f"`{FOR_GOOD}` comes from {_MINUTES_FOR_GOOD} minutes on."]
    left_out += [] if ONE_RANK in kinds else [f"`{ONE_RANK}` wants --ranks 2."]
    return kinds, left_out


def schedules(config: Path, settings: Sequence[str]) -> dict[str, TrainingSchedule]:
    """Return the schedule of each training of a configuration."""
    loaded = load_run_config(config, overrides=settings).config
    return {stage.value: getattr(loaded, stage.value).schedule for stage in TRAINED}


def longer_trainings(times: int, found: Mapping[str, TrainingSchedule]) -> Iterator[str]:
    """Yield settings for `times` as many steps of training, with unchanged steps between checkpoints."""
    for stage, schedule_ in found.items():
        assert schedule_.max_steps is not None
        yield f"{stage}.schedule.max_steps={times * schedule_.max_steps}"


def disturbed(run: Run, scene: Scene, events: deque[Event], *, deadline: float) -> list[Cost]:
    """Return the cost of each fault until the deadline; then the run goes on to its end without faults."""
    costs = []
    while run.go_on() and time.monotonic() < deadline:
        cost = put_and_watch(run, scene, events[0])
        if cost is not None:
            costs.append(cost)
            print(f"{events.popleft()}: {cost.recovery_s:.1f} s, {cost.steps_again} steps again", flush=True)
    undisturbed(run)
    return costs


def saved(found: Mapping[str, TrainingSchedule]) -> str:
    """Return a sentence on how often each training saves a checkpoint."""
    each = (f"{schedule_.save_steps or schedule_.eval_steps} ({stage})" for stage, schedule_ in found.items())
    return f"A checkpoint is saved every so many steps: {', '.join(each)}."


def page(text: str, saved_when: str, left_out: Sequence[str], *, measured: str) -> str:
    """Return the figures as a page, with the machine and code that were measured."""
    command = f"python -m benchmarks.chaos {' '.join(sys.argv[1:])}".rstrip()
    notes = "\n".join(left_out)
    return f"""# Faults at random moments

    {command}

{when_and_where(measured)}, load average {os.getloadavg()[1]:.1f} at its end.

{text}

Recovery: from the fault until the run did something that it had not done before: a step of training, or a stage. It
includes the time for which a fault lasts that is taken back (0.5 to 8 s), the start of the command, and the stage's.
{saved_when} {notes}
"""


if __name__ == "__main__":
    sys.exit(main())
