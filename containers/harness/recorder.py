"""Write the events of a stage to a file in its work folder: `events.jsonl`, one JSON object per line.

The orchestrator follows the file and passes events to MLflow, the terminal and Prefect. So a stage never stops because
MLflow is away, and the container needs neither network nor credentials.

Lines:
    {"type": "metrics", "time": …, "step": 3, "values": {"loss": 0.6}, "non_finite": {"grad_norm": "nan"}}
    {"type": "progress", "time": …, "done": 3, "total": 50, "unit": "steps", "text": ""}
    {"type": "stopping", "time": …, "stops_every": 2, "save_s": 9.1}
    {"type": "note", "time": …, "text": "no valid checkpoint, starting at 0"}
"""

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger(__name__)


class Recorder:
    """Appends events to a file; each line is flushed, so a killed stage loses at most the line being written.

    After a full disk or a power cut, half a line may be left; it gets a line end first, so it spoils no other line.

    Args:
        path: the events file; parent folder exists.
        enabled: False on every rank but the first.
    """

    def __init__(self, path: Path, *, enabled: bool = True) -> None:
        self._path = path
        self._enabled = enabled

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record curves at an optimizer step. NaN and infinity are kept as text, never as null or zero."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        non_finite = {name: str(float(value)) for name, value in values.items() if not math.isfinite(value)}
        event: dict[str, Any] = {"type": "metrics", "step": int(step), "values": finite}
        if non_finite:
            event["non_finite"] = non_finite
        self._append(event)

    def progress(self, done: int, total: int, *, unit: str, text: str = "") -> None:
        """Record the progress of the stage; the caller limits the rate."""
        self._append({"type": "progress", "done": done, "total": total, "unit": unit, "text": text})

    def stopping(self, *, stops_every: int, save_s: float | None = None) -> None:
        """Record after how many steps a training can stop, and how long its last save took; see `stop_grace`."""
        self._append({"type": "stopping", "stops_every": stops_every, "save_s": save_s})

    def note(self, text: str) -> None:
        """Record a message for the user: a resume, a skipped checkpoint, rows left out."""
        logger.info("%s", text)
        self._append({"type": "note", "text": text})

    def to_disk(self) -> None:
        """Sync the events to disk, so that they survive a power cut."""
        if self._enabled and self._path.exists():
            with open(self._path, "rb") as stream:
                os.fsync(stream.fileno())

    def _append(self, event: dict[str, Any]) -> None:
        if not self._enabled:
            return
        line = json.dumps({"time": time.time(), **event}, allow_nan=False, ensure_ascii=False)
        with open(self._path, "ab+") as stream:
            stream.write(b"" if _ends_with_a_line(stream) else b"\n")
            stream.write(f"{line}\n".encode())


def _ends_with_a_line(stream: BinaryIO) -> bool:
    if not stream.seek(0, os.SEEK_END):
        return True
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) == b"\n"
