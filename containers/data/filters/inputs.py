"""The inputs of filter_dataset: one source or a mixture, each with its reader, and the suites to keep out."""

import contextlib
import gc
from collections.abc import Iterator

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.data.funnel import Split
from containers.data.sources import SINGLE_SOURCE, Source, check_malformed, read_source
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError

_INPUTS: tuple[tuple[Split, str], ...] = (("train", "train_data"), ("validation", "validation_data"))


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
def read_sources(context: StageContext, config: FilterDatasetConfig) -> list[Source]:
    """Read every source: training rows and, if there are any, validation rows.

    Raises:
        BadDataError: a source cannot be read, or more of its rows are malformed than allowed.
    """
    sources = []
    readings = {share.name: share.reading for share in config.mixture} or {SINGLE_SOURCE: config.reading}
    for name, reading in readings.items():
        ending = f"_{name}" if config.mixture else ""
        reader = context.input_path(f"reader{ending}") if context.has_input(f"reader{ending}") else None
        for split, prefix in _INPUTS:
            if split == "train" or context.has_input(f"{prefix}{ending}"):
                source = read_source(
                    context.input(f"{prefix}{ending}"), split=split, name=name, reader=reader, reading=reading
                )
                context.recorder.note(
                    f"{source.origin}: {source.rows_read:,} rows, {source.num_malformed:,} malformed."
                )
                check_malformed(source, max_fraction=config.max_malformed_fraction)
                sources.append(source)
    return sources
