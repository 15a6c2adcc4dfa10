"""The inputs of filter_dataset: one source or a mixture, each with its reader, and the suites to keep out."""

import contextlib
import gc
from collections.abc import Iterator

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.records import PolarityCheck
from containers.data.funnel import Split
from containers.data.polarity import check_polarity, check_readers
from containers.data.sources import SINGLE_SOURCE, Source, check_malformed, read_source
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError

_INPUTS: tuple[tuple[Split, str], ...] = (("train", "train_data"), ("validation", "validation_data"))


def filter_config(context: StageContext) -> FilterDatasetConfig:
    """The stage's configuration.

    Raises:
        BadConfigError: it is another stage's, or max_tokens without a tokenizer.
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


def read_sources(context: StageContext, config: FilterDatasetConfig) -> list[Source]:
    """Every source: training rows and, where there are such, validation rows.

    Raises:
        BadDataError: a source cannot be read, or more of its rows are malformed than allowed.
    """
    with _no_search_for_cycles():
        return _read_sources(context, config)


@contextlib.contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Rows stay to the end and refer to nothing in circles; searching them again and again takes 10 µs a row."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _read_sources(context: StageContext, config: FilterDatasetConfig) -> list[Source]:
    sources = []
    for name in [share.name for share in config.mixture] or [SINGLE_SOURCE]:
        ending = f"_{name}" if config.mixture else ""
        reader = context.input_path(f"reader{ending}") if context.has_input(f"reader{ending}") else None
        for split, prefix in _INPUTS:
            if split == "train" or context.has_input(f"{prefix}{ending}"):
                source = read_source(context.input(f"{prefix}{ending}"), split=split, name=name, reader=reader)
                context.recorder.note(
                    f"{source.origin}: {source.rows_read:,} rows, {source.num_malformed:,} malformed."
                )
                check_malformed(source, max_fraction=config.max_malformed_fraction)
                sources.append(source)
    return sources


def checked_polarity(context: StageContext, sources: list[Source]) -> tuple[PolarityCheck, ...]:
    """How often labels agree with the scores beside them, for each source that has such scores.

    Raises:
        BadDataError: a source where they mostly disagree.
        RuntimeError: a reader takes the worse answer of a known row for the better one.
    """
    check_readers()
    checks = []
    for source in sources:
        check = check_polarity(source.origin, (item.row for item in source.rows))
        if check is not None:
            context.recorder.note(
                f"{check.source}: the label agrees with the scores beside it on {check.num_agreeing:,} of "
                f"{check.num_judged:,} rows."
            )
            checks.append(check)
    return tuple(checks)
