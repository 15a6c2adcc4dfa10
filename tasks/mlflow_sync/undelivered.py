"""What MLflow lacks of one run, as a record that can be delivered at any time, and twice without harm.

The record holds what the run's page is to show, not the messages that lead there: delivery makes MLflow look like it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from containers.contracts.base import Frozen
from containers.contracts.spec import StageInput
from tasks.store.events import MetricPoint, read_points

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
PartName = Literal["run", "params", "tags", "datasets", "figures", "curves", "end", "files"]

HANDLE_PREFIX = "pending-"
_IN_ORDER: tuple[PartName, ...] = ("params", "tags", "datasets", "figures", "curves", "end", "files")


class Part(NamedTuple):
    """A part of a run that is delivered in one piece; with a key, one file or one pair of it."""

    name: PartName
    key: str = ""


class DatasetUse(Frozen):
    """One input as the run page shows it: name, digest, source."""

    name: str
    digest: str
    source_type: str
    source: str


class FileSource(Frozen):
    """Content of a file on the run's page: a file that must still be there at the delivery, or a text."""

    path: str = ""
    text: str = ""


class Curves(Frozen):
    """The curves in an events file; a run gets one point per key and step."""

    events_path: str
    size_bytes: int = Field(description="Size of the file when the stage ended; a later attempt appends to it")

    def points(self) -> tuple[MetricPoint, ...]:
        """Return the points in the file.

        Raises:
            FileNotFoundError: the file is gone.
        """
        if not Path(self.events_path).is_file():
            raise FileNotFoundError(f"{self.events_path} is gone, and its curves with it.")
        return read_points(Path(self.events_path), up_to_bytes=self.size_bytes)


class RunEnd(Frozen):
    """The end of a run."""

    status: RunStatus
    time_ms: int


class UndeliveredRun(BaseModel):
    """A run, and what MLflow lacks of it. Each part is emptied when the server took or refused it."""

    model_config = ConfigDict(extra="forbid")

    handle: str = Field(description="Name of the run until the server gives an id; the server keeps it as a tag")
    run_id: str = Field(default="", description="MLflow's id; empty before the run is created")
    is_open: bool = Field(default=True, description="Whether this process has to end the run")
    experiment: str = ""
    name: str = ""
    parent: str = Field(default="", description="Id or handle of the parent run; empty for a run without one")
    start_time_ms: int = 0
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    datasets: tuple[DatasetUse, ...] = ()
    figures: dict[str, tuple[float, int]] = Field(default={}, description="Name → value and timestamp in ms")
    curves: Curves | None = None
    end: RunEnd | None = None
    files: dict[str, FileSource] = Field(default={}, description="Place on the run's page → content")
    one_by_one: set[PartName] = Field(default={"files"}, exclude=True, description="Parts that are sent pair by pair")

    def parts(self) -> Iterator[Part]:
        """Yield what the server lacks; the run itself comes first, and its files come last."""
        if not self.run_id:
            yield Part("run")
        for name in _IN_ORDER:
            if name in self.one_by_one:
                yield from (Part(name, key) for key in getattr(self, name))
            elif getattr(self, name):
                yield Part(name)

    def empty(self, part: Part) -> None:
        """Forget a part that the server took or refused."""
        if part.key:
            del getattr(self, part.name)[part.key]
        elif part.name != "run":
            setattr(self, part.name, type(self).model_fields[part.name].get_default(call_default_factory=True))

    def pairs(self, part: Part) -> dict[str, Any]:
        """Return the pairs of a part that has some."""
        found: dict[str, Any] = getattr(self, part.name)
        return {part.key: found[part.key]} if part.key else found

    def close(self, status: RunStatus, time_ms: int) -> None:
        """Set the end."""
        self.is_open = False
        self.end = RunEnd(status=status, time_ms=time_ms)


def dataset_use(item: StageInput) -> DatasetUse:
    """Return an input of a stage as MLflow shows it."""
    source = json.dumps({"uri": item.path, "digest": item.digest, "origin": item.origin}, ensure_ascii=False)
    source_type = "hub" if item.digest.startswith("hub:") else "local"
    return DatasetUse(name=item.name, digest=item.digest, source_type=source_type, source=source)


def flat_params(values: Mapping[str, object], *, prefix: str = "") -> dict[str, str]:
    """Return the values as text; a nested mapping becomes dotted names, a list JSON."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat_params(value, prefix=f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = json.dumps(value, default=str) if isinstance(value, (list, tuple)) else str(value)
    return found
