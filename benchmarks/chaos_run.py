"""One run of the pipeline for `benchmarks.chaos`: it is started again until it succeeds, and observed."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.chaos_events import alive_below
from containers.contracts.names import StageName
from containers.launch.leftovers import folder_token, processes_with
from tests.faults.tiny_project import Driven, TinyProject, curves, recorded_steps, stage_processes, weights_digest

TRAINED = (StageName.TRAIN_SFT, StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_POLICY)
PAUSE_S = 0.1
_FIRST_RUN_LIMIT_S = 1800.0
_ENDS_WITHIN_S = 30


@dataclass
class Run:
    """One run of the pipeline in its own folder, started again until it succeeds."""

    tiny: TinyProject
    config: str
    name: str
    folder: Path
    settings: tuple[str, ...]
    limit_s: float = _FIRST_RUN_LIMIT_S
    driven: Driven | None = None
    starts: int = 0
    began: float = field(default_factory=time.monotonic)
    took_s: float = 0.0

    def go_on(self) -> bool:
        """Start the command if it does not run. False: the run has succeeded."""
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
            config=self.config,
        )
        return True

    def _give_up(self) -> None:
        said = self.driven.text[-4000:] if self.driven else ""
        if self.driven is not None and self.driven.process.poll() is None:
            self.driven.kill()
        raise SystemExit(f"{self.name} did not end within {self.limit_s:.0f} s:\n{said}")

    def orchestrator(self) -> psutil.Process | None:
        """Return the orchestrator's process; None if it has ended."""
        if self.driven is None or self.driven.process.poll() is not None:
            return None
        return psutil.Process(self.driven.process.pid)

    def wait_for_kill(self) -> None:
        """Wait until the killed command is dead."""
        if self.driven is not None:
            self.driven.wait()

    def programs(self) -> list[psutil.Process]:
        """Return the processes of the running stage."""
        with suppress(psutil.Error):
            orchestrator = self.orchestrator()
            return list(stage_processes(orchestrator.pid)) if orchestrator else []
        return []

    def ends(self, programs: list[psutil.Process]) -> bool:
        """Whether a program lives without its orchestrator; never if only a server was killed."""
        own: set[int] = set()
        with suppress(psutil.Error):
            orchestrator = self.orchestrator()
            own = {child.pid for child in orchestrator.children(recursive=True)} if orchestrator else set()
        return any(_lives(program) and program.pid not in own for program in programs)

    def progress(self) -> tuple[int, int]:
        """Return the number of published artifacts, and the running training's last step; grows with all new work."""
        published = {path.parent.name for path in (self.folder / "store").glob("artifacts/*/*/MANIFEST.json")}
        open_work = [path for path in self._works() if path.name not in published]
        return len(published), max((max(recorded_steps(path), default=0) for path in open_work), default=0)

    def num_steps(self) -> int:
        """Return the number of steps of all trainings, each counted once."""
        return sum(len(set(recorded_steps(work))) for work in self._works())

    def steps_again(self) -> int:
        """Return the number of repeated training steps."""
        steps = [recorded_steps(work) for work in self._works()]
        return sum(len(found) - len(set(found)) for found in steps)

    def work_folders(self) -> set[Path]:
        """Return the work folder of every begun stage, also if it is gone because the artifact is published."""
        store = self.folder / "store"
        begun = [*store.glob("artifacts/*/*/"), *store.glob("work/*/*/")]
        return {store / "work" / path.parent.name / path.name for path in begun}

    def _works(self) -> list[Path]:
        return [path for path in (self.folder / "store").glob("work/train_*/*") if path.is_dir()]

    def made(self) -> dict[str, object]:
        """Return weights and curves of every training."""
        artifacts = {stage: (self.folder / "out" / "artifacts" / stage).resolve() for stage in TRAINED}
        return {stage: (weights_digest(path), curves(path)) for stage, path in artifacts.items()}


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def undisturbed(run: Run) -> None:
    """Run to the end without faults."""
    while run.go_on():
        time.sleep(PAUSE_S)


def left_alive(run: Run) -> list[str]:
    """Return processes that live some time after the run's end: found by its folder, or by a stage's token."""
    until = time.monotonic() + _ENDS_WITHIN_S
    while True:
        found = alive_below(run.folder)
        for work in run.work_folders():
            found += [f"{pid} has the token of {work}" for pid in processes_with(folder_token(work))]
        if not found or time.monotonic() > until:
            return found
        time.sleep(PAUSE_S)
