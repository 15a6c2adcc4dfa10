"""Configuration of a suite that judges reward models."""

from pydantic import Field

from containers.contracts.base import Fraction, Frozen, Name
from containers.contracts.registries import BenchmarkName


class SuiteFile(Frozen):
    """Data that judges the reward model, and the benchmark whose rule scores it."""

    name: Name = Field(description="Lower-case letters, digits, `-`, `_`; names its figures")
    benchmark: BenchmarkName = Field(
        "pairs", description="How rows are read and scored; `pairs` takes every schema that filter_dataset reads"
    )
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
    minimum_accuracy: Fraction | None = Field(
        None, description="The gate demands at least this of the benchmark's own figure; null: only reported"
    )
