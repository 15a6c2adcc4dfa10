"""What the policy wrote at the first, the middle and the last step that its training kept completions of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.contracts.records import Message
from containers.document.model import Answer, Sample, Samples, Text

_COLUMNS = ("step", "prompt", "completion", "reward")
_SHOWN_CHARACTERS = 2_000


@dataclass(frozen=True)
class WrittenStep:
    """Two completions of one prompt of a step: the one with the highest reward, and the one with the lowest.

    The second is None where a prompt has one completion.
    """

    step: int
    prompt: tuple[Message, ...]
    best: tuple[str, float]
    worst: tuple[str, float] | None


def read_written(path: Path) -> tuple[WrittenStep, ...]:
    """Read the first, the middle and the last kept step; empty if the file holds none, or cannot be read.

    Of each step it is the prompt whose rewards differ most: the one from which the step taught most.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        rows: list[dict[str, Any]] = parquet.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except (OSError, pa.ArrowException):
        return ()
    by_step: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["reward"] is not None:
            by_step.setdefault(row["step"], []).append(row)
    steps = list(by_step)
    places = sorted({0, len(steps) // 2, len(steps) - 1}) if steps else []
    return tuple(_written(steps[place], by_step[steps[place]]) for place in places)


def _written(step: int, rows: Sequence[Mapping[str, Any]]) -> WrittenStep:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row["prompt"]), []).append(row)
    group = max(groups.values(), key=lambda some: max(map(_reward, some)) - min(map(_reward, some)))
    best, worst = max(group, key=_reward), min(group, key=_reward)
    return WrittenStep(
        step,
        tuple(Message.model_validate(turn) for turn in group[0]["prompt"]),
        (_cut(best["completion"]), _reward(best)),
        (_cut(worst["completion"]), _reward(worst)) if len(group) > 1 else None,
    )


def _reward(row: Mapping[str, Any]) -> float:
    return float(row["reward"])


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


def written_samples(written: Sequence[WrittenStep]) -> Samples:
    """Return the steps in order, each with both completions and their rewards."""
    items = tuple(
        Sample(
            step.prompt,
            (Answer("reward", *step.best, False),)
            if step.worst is None
            else (
                Answer("highest reward", *step.best, step.best[1] > step.worst[1]),
                Answer("lowest reward", *step.worst, False),
            ),
            Text(f"step {step.step:,}"),
        )
        for step in written
    )
    note = "Of each step, the prompt whose rewards differ most. The command rlhf step shows a step whole."
    return Samples("written", items, note)
