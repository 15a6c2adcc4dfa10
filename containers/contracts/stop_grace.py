"""Time that a stage may take to stop, from the times of its own steps and saves.

Orchestrator and stage program both import it.

A training stops after a step from which a resume is exact, and saves first. That takes a fraction of a second on a tiny
model and minutes on an 8B policy, so no fixed number of seconds fits both.
"""

import itertools
import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# For stages that do not train, and before the first step was measured.
SHORTEST_S = 20.0
# A stage that takes longer is killed, and the next attempt resumes from its last checkpoint.
LONGEST_S = 900.0
# Steps differ (lengths, a busy disk); a save that is killed loses all steps since the save before.
_MARGIN = 1.5
# Before the first save was measured; a training that is killed then starts again at step 0.
_UNMEASURED_SAVE_S = 30.0
_TAIL_BYTES = 4 * 1024**2
_RECENT_STEPS = 20


@dataclass(frozen=True)
class StopGrace:
    """Seconds between SIGTERM and SIGKILL.

    Attributes:
        why: for users; `measured: 31.0 s a step, stops every 2 steps, 9.0 s to save`.
    """

    seconds: float
    why: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s ({self.why})" if self.why else f"{self.seconds:g} s"


def stop_grace(events: Path) -> StopGrace:
    """Grace of the stage that writes this events file; values are bounded, since a stage is not trusted."""
    found = list(_recent_events(events))
    said = [event for event in found if event.get("type") == "stopping"]
    step_s = _step_s(found[_began(found) :])
    if step_s is None:
        return StopGrace(SHORTEST_S, "no step was measured")
    every = max([1.0, *(_number(event, "stops_every") for event in said)])
    saves = [_number(event, "save_s") for event in said if event.get("save_s") is not None]
    save_s = max(saves, default=_UNMEASURED_SAVE_S)
    seconds = min(LONGEST_S, max(SHORTEST_S, _MARGIN * (every * step_s + save_s)))
    saving = f"{save_s:.1f} s to save" if saves else f"no save yet, estimated {save_s:.0f} s"
    return StopGrace(seconds, f"measured: {step_s:.1f} s a step, stops every {every:.0f} steps, {saving}")


def _began(events: Sequence[dict[str, Any]]) -> int:
    """Index of the event at which the last attempt began training; days may pass between two attempts."""
    begins = [i for i, event in enumerate(events) if event.get("type") == "stopping" and event.get("save_s") is None]
    return begins[-1] if begins else 0


def _step_s(events: Sequence[dict[str, Any]]) -> float | None:
    """Longest of the last steps in seconds, evaluation and saves included; unreported steps share their time."""
    progress = [event for event in events if event.get("type") == "progress" and event.get("unit") == "steps"]
    durations = []
    for before, after in itertools.pairwise(progress):
        steps = _number(after, "done") - _number(before, "done")
        if steps > 0:
            durations.append(max(0.0, _number(after, "time") - _number(before, "time")) / steps)
    return max(durations[-_RECENT_STEPS:], default=None)


def _number(event: dict[str, Any], name: str) -> float:
    value = event.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and abs(value) < 1e12 else 0.0


def _recent_events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            return
        stream.seek(max(0, found.st_size - _TAIL_BYTES))
        lines = stream.read(_TAIL_BYTES).splitlines()
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # half a line at the beginning or the end
        if isinstance(event, dict):
            yield event
