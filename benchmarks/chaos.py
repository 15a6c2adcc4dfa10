"""What do faults cost a run, and does it come out the same? `make chaos`, or

    python -m benchmarks.chaos [--minutes 2] [--seed 7] [--ranks 1] [--write]

A pipeline of minutes (tests/faults/tiny_project.py: every stage but fine-tuning, on a processor, in processes) is run
once without faults, and then again and again, each time in a store of its own on a small disk, while faults come at
random moments: `kill -9`, SIGSTOP, a full disk, servers that die and come back. The seed says which and when; the list
is printed first. Where the command ends, the same command is started again, as a user would. When the time is up the
last run goes on without faults to its end.

Printed at the end, for each kind of fault: how long until the run did something that it had not done before the fault
(recovery), and how many steps of training it did again; and of the whole, how much of its time went into work that
counts (goodput: seconds of the run without faults, by seconds of one with them). Exit code 1 where weights or curves
are not those of the run without faults, bit for bit, or something of a run is alive after its end.
"""

import argparse
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import psutil

from benchmarks.chaos_events import DISK, FOR_GOOD, KINDS, ONE_RANK, Event, Scene, alive_below, schedule
from containers.contracts.names import StageName
from containers.launch.leftovers import folder_token, processes_with
from containers.stages.measure import cpu_model
from tests.faults.mortal_server import Mlflow, Prefect
from tests.faults.tiny_project import Driven, TinyProject, curves, recorded_steps, stage_processes, weights_digest

PROJECT = Path(__file__).resolve().parents[1]
PAGES = PROJECT / "docs" / "proofs"
TRAINED = (StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_POLICY)
_DISK_MIB = 512
_SILENCE_LIMIT_S = 120
# From here on there is time for what only a limit on silence ends.
_MINUTES_FOR_GOOD = 20
# A run with faults takes so many times as long as one without, at most; something hangs then.
_RUN_LIMIT = 20
_FIRST_RUN_LIMIT_S = 1800.0
_ENDS_WITHIN_S = 30
_PAUSE_S = 0.1
_ALL_EQUAL = "Weights and curves of every run are those of the run without faults, bit for bit, and nothing is alive."


@dataclass(frozen=True)
class Cost:
    """What one fault cost."""

    event: Event
    recovery_s: float
    steps_again: int
    starts_again: int


@dataclass
class Run:
    """One run of the pipeline in a folder of its own, started again as often as it takes."""

    tiny: TinyProject
    name: str
    folder: Path
    settings: tuple[str, ...]
    limit_s: float = _FIRST_RUN_LIMIT_S
    driven: Driven | None = None
    starts: int = 0
    began: float = field(default_factory=time.monotonic)
    took_s: float = 0.0

    def go_on(self) -> bool:
        """Start the command where it does not run. False: the run has come to its good end."""
        if time.monotonic() - self.began > self.limit_s and not self.took_s:
            self._give_up()
        if self.driven is not None:
            code = self.driven.process.poll()
            if code is None:
                return True
            if code == 0:
                self.took_s = self.took_s or time.monotonic() - self.began
                return False
        self.starts += 1
        self.driven = self.tiny.rlhf(
            f"run.name={self.name}",
            f"run.output_dir={self.folder}/out",
            f"run.store_dir={self.folder}/store",
            *self.settings,
        )
        return True

    def _give_up(self) -> None:
        said = self.driven.text[-4000:] if self.driven else ""
        if self.driven is not None and self.driven.process.poll() is None:
            self.driven.kill()
        raise SystemExit(f"{self.name} did not end within {self.limit_s:.0f} s:\n{said}")

    def orchestrator(self) -> psutil.Process | None:
        """Its process; None where it has ended."""
        if self.driven is None or self.driven.process.poll() is not None:
            return None
        return psutil.Process(self.driven.process.pid)

    def programs(self) -> list[psutil.Process]:
        """The processes of the stage that is at work."""
        with suppress(psutil.Error):
            orchestrator = self.orchestrator()
            return list(stage_processes(orchestrator.pid)) if orchestrator else []
        return []

    def ends(self, programs: list[psutil.Process]) -> bool:
        """Whether these lost what they belong to and have not ended yet; never where only a server was killed."""
        own: set[int] = set()
        with suppress(psutil.Error):
            orchestrator = self.orchestrator()
            own = {child.pid for child in orchestrator.children(recursive=True)} if orchestrator else set()
        return any(_lives(program) and program.pid not in own for program in programs)

    def progress(self) -> tuple[int, int]:
        """Published artifacts, and the furthest step of the training that is at work; grows as long as it gets on."""
        published = {path.parent.name for path in (self.folder / "store").glob("artifacts/*/*/MANIFEST.json")}
        open_work = [path for path in self._works() if path.name not in published]
        return len(published), max((max(recorded_steps(path), default=0) for path in open_work), default=0)

    def steps_again(self) -> int:
        """Training steps that were recorded more than once."""
        steps = [recorded_steps(work) for work in self._works()]
        return sum(len(found) - len(set(found)) for found in steps)

    def work_folders(self) -> set[Path]:
        """Of every stage that it has begun, also where the folder is gone since the stage's artifact is published."""
        store = self.folder / "store"
        begun = [*store.glob("artifacts/*/*/"), *store.glob("work/*/*/")]
        return {store / "work" / path.parent.name / path.name for path in begun}

    def _works(self) -> list[Path]:
        return [path for path in (self.folder / "store").glob("work/train_*/*") if path.is_dir()]

    def made(self) -> dict[str, object]:
        """Weights and curves of every training."""
        artifacts = {stage: (self.folder / "out" / "artifacts" / stage).resolve() for stage in TRAINED}
        return {stage: (weights_digest(path), curves(path)) for stage, path in artifacts.items()}


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def small_disk(folder: Path) -> Iterator[str]:
    """A file system of a few hundred MiB at that folder; yields why there is none, empty: there is."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    try:
        yield (done.stderr.strip() or "mount failed") if done.returncode else ""
    finally:
        if not done.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607 - as `mount`


def undisturbed(run: Run) -> None:
    """The run to its end, without faults."""
    while run.go_on():
        time.sleep(_PAUSE_S)


def put_and_watch(run: Run, scene: Scene, event: Event) -> Cost | None:
    """Wait, put the fault into the run, and go on until the run has done something new. None: the run ended before."""
    until = time.monotonic() + event.wait_s
    while time.monotonic() < until:
        if not run.go_on():
            return None
        time.sleep(_PAUSE_S)
    while True:
        again, starts, clock, programs = run.steps_again(), run.starts, time.monotonic(), run.programs()
        if scene.put(event):
            break
        if not run.go_on():
            return None
        time.sleep(_PAUSE_S)
    # What is killed with its orchestrator still ends its step: that is no recovery.
    while "kill" in event.kind and run.go_on() and run.ends(programs):
        time.sleep(_PAUSE_S)
    before = run.progress()
    while run.go_on() and run.progress() <= before:
        time.sleep(_PAUSE_S)
    return Cost(event, time.monotonic() - clock, run.steps_again() - again, run.starts - starts)


def left_alive(run: Run) -> list[str]:
    """What still runs of it some time after its end: by its folder, and by the token of a stage."""
    until = time.monotonic() + _ENDS_WITHIN_S
    while True:
        found = alive_below(run.folder)
        for work in run.work_folders():
            found += [f"{pid} has the token of {work}" for pid in processes_with(folder_token(work))]
        if not found or time.monotonic() > until:
            return found
        time.sleep(_PAUSE_S)


def table(costs: Sequence[Cost], kinds: Sequence[str]) -> Iterator[str]:
    """A line for each kind of fault, and one for all."""
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


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - as the developer's own
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="for how long faults come; 2 unless given")
    parser.add_argument("--seed", type=int, default=7, help="of which faults come when; 7 unless given")
    parser.add_argument("--ranks", type=int, default=1, help="processes of a training; from 2 on one of them is killed")
    parser.add_argument("--write", action="store_true", help="write the page in docs/proofs as well")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        return chaos(Path(scratch).resolve(), stack, given=given)


def chaos(scratch: Path, stack: ExitStack, *, given: argparse.Namespace) -> int:
    """0 where every run came out as the one without faults, and left nothing."""
    minutes, seed, commit = given.minutes, given.seed, _commit()
    no_disk = stack.enter_context(small_disk(scratch / "disk"))
    kinds = tuple(kind for kind in KINDS if kind != DISK or not no_disk)
    kinds += (ONE_RANK,) if given.ranks > 1 else ()
    kinds += (FOR_GOOD,) if minutes >= _MINUTES_FOR_GOOD else ()
    left_out = [] if not no_disk else [f"`{DISK}` was left out: a small disk cannot be mounted here ({no_disk})."]
    left_out += [] if FOR_GOOD in kinds else [f"`{FOR_GOOD}` comes from {_MINUTES_FOR_GOOD} minutes on."]
    left_out += [] if ONE_RANK in kinds else [f"`{ONE_RANK}` wants --ranks 2."]
    print(f"Seed {seed}. As many of these as {minutes:g} minutes hold:")
    for event in islice(schedule(seed, kinds), math.ceil(minutes * 6)):
        print(event)
    print("\n".join(left_out), flush=True)
    tiny = TinyProject.make(scratch / "project", PROJECT)
    servers = Mlflow(scratch / "servers"), Prefect(scratch / "servers")
    for server in servers:
        stack.callback(server.stop)
        server.start()
    mlflow, prefect = servers
    settings = (
        f"tracking.prefect_api_url={prefect.api_url}",
        f"tracking.mlflow_uri={mlflow.uri}",
        f"runtime.silence_limit_s={_SILENCE_LIMIT_S}",
        f"gpu_profile.num_processes={given.ranks}",
    )
    reference = Run(tiny, "undisturbed", scratch / "disk" / "undisturbed", settings)
    undisturbed(reference)
    wanted = reference.made()
    shutil.rmtree(reference.folder)
    print(f"Without faults: {reference.took_s:.0f} s, started {reference.starts} times.", flush=True)

    costs, wrong, ended = [], [], []
    events, event = schedule(seed, kinds), None
    deadline = time.monotonic() + minutes * 60
    while time.monotonic() < deadline:
        name = f"chaos-{len(ended) + 1}"
        limit_s = minutes * 60 + _RUN_LIMIT * reference.took_s
        run = Run(tiny, name, scratch / "disk" / name, settings, limit_s)
        scene = Scene(run.orchestrator, mlflow, prefect, scratch / "disk")
        while run.go_on() and time.monotonic() < deadline:
            event = event or next(events)
            cost = put_and_watch(run, scene, event)
            if cost is not None:
                costs.append(cost)
                print(f"{event}: {cost.recovery_s:.1f} s, {cost.steps_again} steps again", flush=True)
                event = None
        undisturbed(run)
        ended.append(run)
        differs = [stage for stage, made in run.made().items() if made != wanted[stage]]
        wrong += [f"{run.name}: {stage} is not what it is without faults." for stage in differs]
        wrong += [f"{run.name}: alive after its end: {process}" for process in left_alive(run)]
        print(
            f"{run.name}: {run.took_s:.0f} s, started {run.starts} times, {len(differs)} trainings differ", flush=True
        )
        shutil.rmtree(run.folder)

    goodput = reference.took_s * len(ended) / sum(run.took_s for run in ended)
    text = "\n".join(
        (
            f"Runs: {len(ended)}, with {len(costs)} faults, {sum(run.took_s for run in ended):.0f} s. One without "
            f"faults takes {reference.took_s:.0f} s. Goodput {goodput:.0%}.",
            "",
            *table(costs, kinds),
            "",
            *(wrong or [_ALL_EQUAL]),
        )
    )
    print(f"\n{text}", flush=True)
    if given.write:
        PAGES.mkdir(parents=True, exist_ok=True)
        name = "chaos.md" if given.ranks == 1 else f"chaos-{given.ranks}-ranks.md"
        (PAGES / name).write_text(page(text, left_out, commit=commit), encoding="utf-8")
    return 1 if wrong else 0


def page(text: str, left_out: Sequence[str], *, commit: str) -> str:
    """The figures with what they were measured on."""
    command = f"python -m benchmarks.chaos {' '.join(sys.argv[1:])}".rstrip()
    notes = "\n".join(left_out)
    return f"""# Faults at random moments

    {command}

{datetime.now(UTC):%d %B %Y}, commit {commit}; Python {platform.python_version()}, {cpu_model()},
{os.cpu_count()} cores, load average {os.getloadavg()[1]:.1f} at its end.

{text}

Recovery: from the fault until the run did something that it had not done before: a step of training, or a stage. It
includes the time for which a fault lasts that is taken back (0.5 to 8 s), the start of the command, and the stage's.
Steps done again: of 52 in a run, with a checkpoint every 5 (reward model) or 3 (policy). {notes}
"""


if __name__ == "__main__":
    sys.exit(main())
