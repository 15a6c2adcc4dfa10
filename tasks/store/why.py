"""Why a stage runs although the run had it before: the settings that changed, in words. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from containers.contracts.names import StageName
from containers.contracts.programs import Program
from tasks.store.history import StageMemory

_MAX_SHOWN = 2
_MAX_FILES_SHOWN = 2
_CONTAINERS = "containers"
_ABSENT = "absent"
_MAX_VALUE_CHARACTERS = 40


def why_it_runs(stage: StageName, before: StageMemory | None, now: StageMemory) -> str:
    """One clause for people: `train_reward_model.learning_rate changed from 0.001 to 0.002`.

    Args:
        before: what the run last had of the stage; None where it never had it.
    """
    if before is None:
        return "this run has no result of it yet"
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
    """`containers/training/loop.py changed; torch 2.12 → 2.13`; empty where one of the two is not known, or nothing."""
    if before is None or now is None:
        return ""
    files = [f"{_CONTAINERS}/{path}" for path in changed_files(before, now)]
    told = [*files[:_MAX_FILES_SHOWN]]
    if len(files) > _MAX_FILES_SHOWN:
        told.append(f"{len(files) - _MAX_FILES_SHOWN} more files")
    parts = [f"{' and '.join(told)} changed"] if told else []
    return "; ".join((*parts, *changed_versions(before, now)))


def changed_files(before: Program, now: Program) -> list[str]:
    """Files whose content differs, or that only one of the two has, in order."""
    paths = before.files.keys() | now.files.keys()
    return sorted(path for path in paths if before.files.get(path) != now.files.get(path))


def changed_versions(before: Program, now: Program) -> list[str]:
    """`torch 2.12.0 → 2.13.0` for each library, in order; an image that could not be asked is one."""
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
        yield f"it reads {name} no more"


def _digests(memory: StageMemory) -> dict[str, str]:
    pairs = memory.identity.get("inputs")
    return {str(item[0]): str(item[1]) for item in pairs if isinstance(item, list)} if isinstance(pairs, list) else {}


def _changed_values(old: Mapping[str, Any], new: Mapping[str, Any], *, prefix: str = "") -> Iterator[str]:
    before, now = dict(_flat(old)), dict(_flat(new))
    for name in [*before, *(name for name in now if name not in before)]:
        if name not in now:
            yield f"{prefix}{name} is no setting any more"
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
