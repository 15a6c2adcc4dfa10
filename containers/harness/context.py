"""Context of a stage program. A program is `run(context) -> tuple[Metric, ...]` in a module with the stage's name."""

from dataclasses import dataclass, field
from pathlib import Path

from containers.contracts.names import CHECKPOINTS_FOLDER, OUTPUT_FOLDER, TENSORBOARD_FOLDER
from containers.contracts.spec import StageInput, StageSpec
from containers.harness.errors import MissingPrerequisiteError
from containers.harness.recorder import Recorder
from containers.harness.stopping import StopSignal


@dataclass(frozen=True)
class StageContext:
    """The spec with its folders, the recorder, and the stop signal.

    The program writes its artifact into `output` and returns the metrics for the manifest. The entry program writes
    manifest and outcome. `checkpoints` outlives a failed attempt: the next attempt at the same key finds there the
    checkpoints that the last one saved.
    """

    spec: StageSpec
    work: Path
    recorder: Recorder
    stop: StopSignal = field(default_factory=StopSignal)

    @property
    def output(self) -> Path:
        """Folder of the artifact; empty at the start of each attempt."""
        return self.work / OUTPUT_FOLDER

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints, shared by the attempts at one key."""
        return self.work / CHECKPOINTS_FOLDER

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard event files."""
        return self.work / TENSORBOARD_FOLDER

    def has_input(self, name: str) -> bool:
        """Whether the spec has this input."""
        return any(item.name == name for item in self.spec.inputs)

    def input(self, name: str) -> StageInput:
        """The input with that name.

        Raises:
            MissingPrerequisiteError: the spec has no such input, or its path does not exist.
        """
        for item in self.spec.inputs:
            if item.name == name:
                if not Path(item.path).exists():
                    raise MissingPrerequisiteError(f"Input `{name}` ({item.origin}) is not at {item.path}.")
                return item
        names = ", ".join(item.name for item in self.spec.inputs) or "none"
        raise MissingPrerequisiteError(f"{self.spec.stage} needs an input `{name}`; the spec has: {names}.")

    def input_path(self, name: str) -> Path:
        """Path of the input with that name; raises as `input`."""
        return Path(self.input(name).path)
