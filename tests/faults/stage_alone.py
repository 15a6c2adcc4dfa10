"""One stage of the undisturbed run, done again in a folder of its own: real runtime and program, no orchestrator."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reference import Reference
from tiny_project import TinyProject, curves, recorded_step, recorded_steps, stage_processes, weights_digest

from containers.contracts.names import SPEC_FILE, StageName
from containers.contracts.outcome import StageFailure
from containers.contracts.spec import StageSpec
from containers.launch.base import LaunchRequest
from containers.launch.collect import read_outcome
from containers.launch.failures.classify import classify
from containers.launch.process import ProcessRuntime

SABOTAGED = Path(__file__).with_name("sabotaged_stage.py")


@dataclass(frozen=True)
class StageAlone:
    """Attempts at one stage.

    Attributes:
        folder: of this test; holds the work folder and the attempts.
    """

    spec: StageSpec
    folder: Path

    @classmethod
    def of(cls, tiny: TinyProject, stage: StageName, folder: Path) -> "StageAlone":
        """The stage as the undisturbed run specified it, with nothing done yet."""
        (spec,) = (tiny.folder / "outputs/undisturbed-store/attempts" / stage).glob(f"*/attempt-1/{SPEC_FILE}")
        return cls(StageSpec.model_validate_json(spec.read_bytes()), folder)

    def finished_before(self, tiny: TinyProject) -> "StageAlone":
        """With the work folder that the undisturbed run left: all its checkpoints, and no output."""
        work = tiny.folder / "outputs/undisturbed-store/work" / self.spec.stage / self.spec.key
        shutil.copytree(work, self.work)
        return self

    def changed(self, **fields: Any) -> "StageAlone":
        """With other fields in the spec."""
        return replace(self, spec=self.spec.model_copy(update=fields))

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def output(self) -> Path:
        return self.work / "output"

    @property
    def checkpoints(self) -> list[str]:
        """The names in the folder of checkpoints, by step."""
        names = [path.name for path in (self.work / "checkpoints").glob("*checkpoint-*")]
        return sorted(names, key=lambda name: int(name.rpartition("-")[2]))

    @property
    def repeated(self) -> int:
        """How many steps were done more than once."""
        return len(recorded_steps(self.work)) - len(set(recorded_steps(self.work)))

    def attempt(
        self, *sabotage: str, stop_at: int | None = None, to_rank: tuple[signal.Signals, int, int] | None = None
    ) -> StageFailure | None:
        """Run it to its end, whatever that is; None after a result.

        Args:
            sabotage: arguments of `sabotaged_stage.py`; without any, the real entry program runs.
            stop_at: cancel it when this step has been recorded.
            to_rank: signal, rank and step: the rank gets the signal when the step has been recorded.
        """
        number = len(list(self.folder.glob("attempt-*"))) + 1
        spec_folder = self.folder / f"attempt-{number}"
        command = (sys.executable, str(SABOTAGED), *sabotage, str(spec_folder / SPEC_FILE)) if sabotage else None
        signalled: list[int] = []

        def look() -> bool:
            if to_rank and not signalled and recorded_step(self.work) >= to_rank[2]:
                signalled.append(send_to_rank(to_rank[1], to_rank[0]))
            return stop_at is not None and recorded_step(self.work) >= stop_at

        launch = LaunchRequest(
            spec=self.spec.model_copy(update={"attempt": number}),
            spec_folder=spec_folder,
            work_folder=self.work,
            should_stop=look,
        )
        stage_exit = ProcessRuntime(command=command).run(launch)
        assert to_rank is None or signalled, "it ended before its rank could be sent a signal"
        return classify(self.spec, stage_exit, read_outcome(self.work))

    def attempt_with(self, others: Sequence["StageAlone"]) -> None:
        """Run it and others like it in one process: most of the time of a stage so short goes into its imports."""
        specs = []
        for stage in others:
            spec = stage.spec.model_copy(update={"work_path": str(stage.work)})
            specs.append(stage.folder / SPEC_FILE)
            specs[-1].write_text(spec.model_dump_json(), encoding="utf-8")
        assert self.attempt("none", "0", *map(str, specs)) is None

    def as_reference(self) -> Reference:
        """What it made, to compare with."""
        stage = self.spec.stage
        return Reference({stage: weights_digest(self.output)}, {stage: curves(self.output)})

    def assert_bit_for_bit(self, reference: Reference) -> None:
        """Weights and curves are those of the undisturbed run."""
        assert weights_digest(self.output) == reference.weights[self.spec.stage]
        assert curves(self.output) == reference.curves[self.spec.stage]

    def resumed_from(self) -> int:
        """The step from which the last attempt went on; 0 where it started over."""
        info = json.loads((self.output / "training_info.json").read_text())
        return int(info["resumed_from_step"] or 0)


def send_to_rank(rank: int, number: signal.Signals) -> int:
    """Send a signal to one rank of the stage that this process runs. Returns its process id."""
    (process,) = [process for process in stage_processes(os.getpid()) if process.environ().get("RANK") == str(rank)]
    process.send_signal(number)
    return process.pid
