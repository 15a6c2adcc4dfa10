"""Data that judges a model: where it lies, and its name."""

from pydantic import Field

from containers.contracts.base import Frozen, Name


class DataFile(Frozen):
    """A file, or files, on this machine or on the hub."""

    name: Name = Field(description="Lower-case letters, digits, `-`, `_`; names its figures")
    hub_id: str | None = Field(None, description="`org/name` of a dataset on the hub; null: local")
    revision: str | None = Field(
        None, description="Commit (best: the run can be repeated) or branch, resolved to its commit; with hub_id only"
    )
    path: str = Field(
        min_length=1,
        max_length=1024,
        description="With hub_id: a file or pattern in the repository; else a local jsonl, jsonl.gz or parquet file, "
        "or a folder of them",
    )
