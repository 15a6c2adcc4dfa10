"""What each run last asked of each stage: why a stage runs now, and which artifacts are still wanted.

One small file per run below the store, replaced atomically. Losing it loses explanations, never work: artifacts are
found by their keys.
"""

import hashlib
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from containers.contracts.base import Frozen
from containers.contracts.digests import write_atomically
from containers.contracts.identity import Identity
from containers.contracts.names import StageName
from containers.contracts.programs import Program
from containers.contracts.spec import StageInput

logger = logging.getLogger(__name__)

_FOLDER = "runs"
# Beside it, with the same file name, what each stage was made with: long, and read only to explain.
_PROGRAMS_FOLDER = "programs"
_PROGRAMS: TypeAdapter[dict[StageName, Program]] = TypeAdapter(dict[StageName, Program])


class StageMemory(Frozen):
    """A stage as a run last had it: its key, what the key was made of, and who made its inputs."""

    key: str
    identity: dict[str, JsonValue]
    origins: dict[str, str] = Field({}, description="Input name → where it came from, in words")
    run_id: str = ""
    at: str = Field("", description="UTC, ISO 8601")
    program: Program | None = Field(None, exclude=True, description="What it is made with; kept in a file of its own")


class RunHistory(Frozen):
    """Everything that a run, told by its name and folder, last had."""

    run_name: str
    output_dir: str
    stages: dict[StageName, StageMemory] = Field({})


class WantedStage(Frozen):
    """Of a stage's memory what says which artifact and which inputs the run wants."""

    model_config = ConfigDict(extra="ignore")

    key: str
    origins: dict[str, str] = Field({})


class RunWants(Frozen):
    """Of a run's history what says what it wants; the rest is skipped, which is most of it."""

    model_config = ConfigDict(extra="ignore")

    run_name: str
    output_dir: str
    stages: dict[StageName, WantedStage] = Field({})


class StageHistory:
    """The history of one run in a store. Nothing here raises for a file that cannot be read: it starts anew."""

    def __init__(self, store_dir: Path, *, run_name: str, output_dir: Path) -> None:
        self._run_name = run_name
        self._output_dir = str(output_dir.absolute())
        digest = hashlib.sha256(self._output_dir.encode()).hexdigest()[:8]
        self.path = store_dir / _FOLDER / f"{run_name}-{digest}.json"
        self._programs = store_dir / _PROGRAMS_FOLDER / self.path.name

    def last(self, stage: StageName) -> StageMemory | None:
        """What the run had of that stage when it last got there."""
        known = _read(self.path, RunHistory)
        memory = known.stages.get(stage) if known else None
        return memory and memory.model_copy(update={"program": self._made_with().get(stage)})

    def remember(self, stage: StageName, memory: StageMemory) -> None:
        """Keep it; called when the stage's artifact stands."""
        known = _read(self.path, RunHistory)
        stages = {**(known.stages if known else {}), stage: memory}
        history = RunHistory(run_name=self._run_name, output_dir=self._output_dir, stages=stages)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, history.model_dump_json(indent=1))
        if memory.program is not None:
            self._programs.parent.mkdir(parents=True, exist_ok=True)
            programs = {**self._made_with(), stage: memory.program}
            write_atomically(self._programs, _PROGRAMS.dump_json(programs, indent=1).decode())

    def _made_with(self) -> dict[StageName, Program]:
        """Stage → with what the run last had it; empty where that was never noted."""
        try:
            return _PROGRAMS.validate_json(self._programs.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:
            logger.warning("%s cannot be read; which files changed is not known: %s", self._programs, error)
            return {}


def stage_memory(
    identity: Identity,
    *,
    key: str,
    inputs: tuple[StageInput, ...],
    program: Program | None = None,
    run_id: str = "",
) -> StageMemory:
    """The stage as it is asked for now."""
    return StageMemory(
        key=key,
        identity=identity,
        origins={item.name: item.origin for item in inputs},
        run_id=run_id,
        program=program,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def what_runs_want(store_dir: Path) -> tuple[RunWants, ...]:
    """Of every run that is known in the store and whose output folder is still there, by name."""
    read = (_read(path, RunWants) for path in sorted((store_dir / _FOLDER).glob("*.json")))
    return tuple(wants for wants in read if wants is not None and Path(wants.output_dir).is_dir())


_Kept = TypeVar("_Kept", RunHistory, RunWants)


def _read(path: Path, kind: type[_Kept]) -> _Kept | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be read; why stages run again is not known: %s", path, error)
        return None
