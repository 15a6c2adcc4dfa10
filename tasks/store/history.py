"""History of the stages in a store, and why a stage runs again."""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from containers.contracts.base import Frozen
from containers.contracts.digests import write_atomically
from containers.contracts.identity import Identity
from containers.contracts.names import StageName
from containers.contracts.programs import Program
from containers.contracts.records import FIRST_TIME
from containers.contracts.spec import StageInput

logger = logging.getLogger(__name__)

_FOLDER = "runs"
# Beside it, under the same file name: what each stage was made with. Long, and read only for explanations.
_PROGRAMS_FOLDER = "programs"
_PROGRAMS: TypeAdapter[dict[StageName, Program]] = TypeAdapter(dict[StageName, Program])
_MAX_SHOWN = 2
_MAX_FILES_SHOWN = 2
_CONTAINERS = "containers"
_ABSENT = "absent"
_MAX_VALUE_CHARACTERS = 40


class StageMemory(Frozen):
    """A stage as a run last had it: its key, the values behind the key, and the origin of its inputs."""

    key: str
    identity: dict[str, JsonValue]
    origins: dict[str, str] = Field({}, description="Input name → its origin, as text")
    run_id: str = ""
    at: str = Field("", description="UTC, ISO 8601")
    program: Program | None = Field(None, exclude=True, description="What it is made with; kept in a separate file")


class RunHistory(Frozen):
    """All stages as a run, identified by name and folder, last had them."""

    run_name: str
    output_dir: str
    stages: dict[StageName, StageMemory] = Field({})


class WantedStage(Frozen):
    """The part of a stage's memory that names the artifact and the inputs in use."""

    model_config = ConfigDict(extra="ignore")

    key: str
    origins: dict[str, str] = Field({})


class RunWants(Frozen):
    """The part of a run's history that names what it uses; the rest, most of it, is skipped."""

    model_config = ConfigDict(extra="ignore")

    run_name: str
    output_dir: str
    stages: dict[StageName, WantedStage] = Field({})


class StageHistory:
    """The history of one run in a store. If a file cannot be read, nothing raises: the history starts anew."""

    def __init__(self, store_dir: Path, *, run_name: str, output_dir: Path) -> None:
        self._run_name = run_name
        self._output_dir = str(output_dir.absolute())
        digest = hashlib.sha256(self._output_dir.encode()).hexdigest()[:8]
        self.path = store_dir / _FOLDER / f"{run_name}-{digest}.json"
        self._programs = store_dir / _PROGRAMS_FOLDER / self.path.name

    def last(self, stage: StageName) -> StageMemory | None:
        """Return the stage as the run last had it; None if it never did."""
        known = _read(self.path, RunHistory)
        memory = known.stages.get(stage) if known else None
        return memory and memory.model_copy(update={"program": self._made_with().get(stage)})

    def remember(self, stage: StageName, memory: StageMemory) -> None:
        """Save the memory. Call it once the stage's artifact is published."""
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
        """Stage → what it was last made with; empty if that was never recorded."""
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
    """Return the memory of the stage as it is configured now."""
    return StageMemory(
        key=key,
        identity=identity,
        origins={item.name: item.origin for item in inputs},
        run_id=run_id,
        program=program,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def what_runs_want(store_dir: Path) -> tuple[RunWants, ...]:
    """What each run in the store uses, sorted by name; runs without an output folder are left out."""
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


def why_it_runs(stage: StageName, before: StageMemory | None, now: StageMemory) -> str:
    """Say why the stage runs, in a clause: `train_reward_model.learning_rate changed from 0.001 to 0.002`.

    Args:
        before: the stage as the run last had it; None if it never did.
    """
    if before is None:
        return FIRST_TIME
    if before.key == now.key:
        return "its artifact is gone"
    if stage is StageName.WRITE_REPORT:
        return "every run writes its own"
    found = list(_differences(stage, before, now))
    shown = found[:_MAX_SHOWN]
    if len(found) > _MAX_SHOWN:
        shown.append(f"and {len(found) - _MAX_SHOWN} more")
    return "; ".join(shown) or "its key is computed in another way now"


def _differences(stage: StageName, before: StageMemory, now: StageMemory) -> Iterator[str]:
    old, new = before.identity, now.identity
    if old.get("code") != new.get("code"):
        yield (
            what_changed(before.program, now.program)
            or "its program changed (sources, installed versions, or the image)"
        )
    yield from _changed_values(_mapping(old.get("config")), _mapping(new.get("config")), prefix=f"{stage}.")
    yield from _changed_values({"run.seed": old.get("seed")}, {"run.seed": new.get("seed")})
    yield from _changed_values(_mapping(old.get("batch")), _mapping(new.get("batch")), prefix=f"{stage} batch: ")
    yield from _changed_values(_mapping(old.get("numerics")), _mapping(new.get("numerics")), prefix="gpu_profile.")
    yield from _changed_inputs(before, now)


def what_changed(before: Program | None, now: Program | None) -> str:
    """`containers/training/loop.py changed; torch 2.12 → 2.13`; empty if a program is unknown or nothing changed."""
    if before is None or now is None:
        return ""
    files = [f"{_CONTAINERS}/{path}" for path in changed_files(before, now)]
    told = [*files[:_MAX_FILES_SHOWN]]
    if len(files) > _MAX_FILES_SHOWN:
        told.append(f"{len(files) - _MAX_FILES_SHOWN} more files")
    parts = [f"{' and '.join(told)} changed"] if told else []
    return "; ".join((*parts, *changed_versions(before, now)))


def changed_files(before: Program, now: Program) -> list[str]:
    """Files that differ, or that only one of the two programs has, in order."""
    paths = before.files.keys() | now.files.keys()
    return sorted(path for path in paths if before.files.get(path) != now.files.get(path))


def changed_versions(before: Program, now: Program) -> list[str]:
    """`torch 2.12.0 → 2.13.0` for each changed library, in order; an image of unknown content counts as one."""
    old, new = ({**item.libraries, "image": item.image} if item.image else item.libraries for item in (before, now))
    names = sorted(old.keys() | new.keys())
    return [
        f"{name} {old.get(name, _ABSENT)} → {new.get(name, _ABSENT)}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def _changed_inputs(before: StageMemory, now: StageMemory) -> Iterator[str]:
    old, new = _digests(before), _digests(now)
    for name, digest in new.items():
        if name not in old:
            yield f"its input {name} is new"
        elif old[name] != digest:
            origin = now.origins.get(name, "")
            yield f"its input {name} changed" + (f" ({origin})" if origin else "")
    for name in old.keys() - new.keys():
        yield f"it no longer reads {name}"


def _digests(memory: StageMemory) -> dict[str, str]:
    pairs = memory.identity.get("inputs")
    return {str(item[0]): str(item[1]) for item in pairs if isinstance(item, list)} if isinstance(pairs, list) else {}


def _changed_values(old: Mapping[str, Any], new: Mapping[str, Any], *, prefix: str = "") -> Iterator[str]:
    before, now = dict(_flat(old)), dict(_flat(new))
    for name in [*before, *(name for name in now if name not in before)]:
        if name not in now:
            yield f"{prefix}{name} is no longer a setting"
        elif name not in before:
            yield f"{prefix}{name} is a new setting"
        elif before[name] != now[name]:
            yield f"{prefix}{name} changed from {_shown(before[name])} to {_shown(now[name])}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _shown(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[: _MAX_VALUE_CHARACTERS - 1]}…"
