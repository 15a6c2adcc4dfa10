"""The inputs of both filters, one source or a mixture, each with its reader; and the reading of preferences."""

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.parts.row_filters import RowFilters, RowReading
from containers.contracts.spec import StageInput
from containers.data.funnel import Split
from containers.data.sources import SINGLE_SOURCE, PairSource, Source, check_malformed, read_source
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError

_INPUTS: tuple[tuple[Split, str], ...] = (("train", "train_data"), ("validation", "validation_data"))


class SourceInput(NamedTuple):
    """The rows of a source for one split: its name in the mixture, its files, and how they are read."""

    name: str
    split: Split
    item: StageInput
    reader: Path | None
    reading: RowReading


def filter_config(context: StageContext) -> FilterDatasetConfig:
    """The stage's configuration.

    Raises:
        BadConfigError: it is another stage's, or has max_tokens and no tokenizer.
    """
    config = context.spec.config
    if not isinstance(config, FilterDatasetConfig):
        raise BadConfigError(f"filter_dataset was given the configuration of {config.stage}.")
    if config.max_tokens is not None and not context.has_input("tokenizer"):
        raise BadConfigError(
            f"filter_dataset.max_tokens is {config.max_tokens}, and there is no tokenizer to count with. Name a "
            f"base_model, or leave max_tokens out: max_characters ({config.max_characters:,}) still holds."
        )
    return config


@contextlib.contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Disable the garbage collector: rows stay to the end and hold no cycles, and searching them takes 10 µs a row."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@_no_search_for_cycles()
def read_sources(context: StageContext, config: FilterDatasetConfig) -> list[PairSource]:
    """Read every source: training rows and, if there are any, validation rows.

    Raises:
        BadDataError: a source cannot be read, or more of its rows are malformed than allowed.
    """
    sources = []
    for one in source_inputs(context, config):
        source = read_source(one.item, split=one.split, name=one.name, reader=one.reader, reading=one.reading)
        note_and_check(context, source, max_fraction=config.max_malformed_fraction)
        sources.append(source)
    return sources


def source_inputs(context: StageContext, config: RowFilters) -> Iterator[SourceInput]:
    """Yield the inputs of every source: training rows and, if there are any, validation rows."""
    readings = {share.name: share.reading for share in config.mixture} or {SINGLE_SOURCE: config.reading}
    for name, reading in readings.items():
        ending = f"_{name}" if config.mixture else ""
        reader = context.input_path(f"reader{ending}") if context.has_input(f"reader{ending}") else None
        for split, prefix in _INPUTS:
            if split == "train" or context.has_input(f"{prefix}{ending}"):
                yield SourceInput(name, split, context.input(f"{prefix}{ending}"), reader, reading)


def note_and_check(context: StageContext, source: Source[Any], *, max_fraction: float) -> None:
    """Note how many rows were read.

    Raises:
        BadDataError: more of them than `max_fraction` are malformed.
    """
    context.recorder.note(f"{source.origin}: {source.rows_read:,} rows, {source.num_malformed:,} malformed.")
    check_malformed(source, max_fraction=max_fraction, stage=context.spec.config.stage)
