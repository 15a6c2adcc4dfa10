"""The inputs of both filters, one source or a mixture, each with its reader; and the reading of preferences."""

import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.row_filters import RowFilters
from containers.contracts.spec import StageInput
from containers.data.formats.columns import (
    ARENA,
    COMPARISONS,
    HELPSTEER3,
    SCHEMAS,
    TRL,
    ULTRAFEEDBACK,
    PreferenceSchema,
)
from containers.data.funnel import Split
from containers.data.sources import SINGLE_SOURCE, PairSource, Source, check_malformed, read_source
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError

_PROMPT, _BETTER, _WORSE = "What is two plus two?", "Four.", "Five."
_USER = {"role": "user", "content": _PROMPT}
_INPUTS: tuple[tuple[Split, str], ...] = (("train", "train_data"), ("validation", "validation_data"))


class SourceInput(NamedTuple):
    """The rows of a source for one split: its name in the mixture, its files, and the user's reader if it has one."""

    name: str
    split: Split
    item: StageInput
    reader: Path | None


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
        source = read_source(one.item, split=one.split, name=one.name, reader=one.reader)
        note_and_check(context, source, max_fraction=config.max_malformed_fraction)
        sources.append(source)
    return sources


def source_inputs(context: StageContext, config: RowFilters) -> Iterator[SourceInput]:
    """Yield the inputs of every source: training rows and, if there are any, validation rows."""
    for name in [share.name for share in config.mixture] or [SINGLE_SOURCE]:
        ending = f"_{name}" if config.mixture else ""
        reader = context.input_path(f"reader{ending}") if context.has_input(f"reader{ending}") else None
        for split, prefix in _INPUTS:
            if split == "train" or context.has_input(f"{prefix}{ending}"):
                yield SourceInput(name, split, context.input(f"{prefix}{ending}"), reader)


def note_and_check(context: StageContext, source: Source[Any], *, max_fraction: float) -> None:
    """Note how many rows were read.

    Raises:
        BadDataError: more of them than `max_fraction` are malformed.
    """
    context.recorder.note(f"{source.origin}: {source.rows_read:,} rows, {source.num_malformed:,} malformed.")
    check_malformed(source, max_fraction=max_fraction, stage=context.spec.config.stage)


# Rows whose better answer is known, in every schema, on either side.
_KNOWN_ROWS: dict[str, tuple[Mapping[str, Any], ...]] = {
    HELPSTEER3.name: (
        {"context": [_USER], "response1": _BETTER, "response2": _WORSE, "overall_preference": -3},
        {"context": [_USER], "response1": _WORSE, "response2": _BETTER, "overall_preference": 1},
    ),
    TRL.name: (
        {"prompt": _PROMPT, "chosen": _BETTER, "rejected": _WORSE},
        {"chosen": [_USER, {"role": "assistant", "content": _BETTER}],
         "rejected": [_USER, {"role": "assistant", "content": _WORSE}]},
        {"chosen": f"\n\nHuman: {_PROMPT}\n\nAssistant: {_BETTER}",
         "rejected": f"\n\nHuman: {_PROMPT}\n\nAssistant: {_WORSE}"},
        {"prompt": _PROMPT, "chosen": _BETTER, "rejected": _WORSE, "score_chosen": 9.0, "score_rejected": 2.0},
    ),
    ARENA.name: (
        {"prompt": _PROMPT, "response_a": _BETTER, "response_b": _WORSE, "winner": "a"},
        {"prompt": _PROMPT, "response_a": _WORSE, "response_b": _BETTER, "winner": "model_b"},
    ),
    ULTRAFEEDBACK.name: (
        {"instruction": _PROMPT, "completions": [{"response": _WORSE, "overall_score": 2},
                                                 {"response": "4, I think.", "overall_score": 6},
                                                 {"response": _BETTER, "overall_score": 9.5}]},
    ),
    COMPARISONS.name: (
        {"text": [f"User: {_PROMPT}\n\nAssistant: {_BETTER}", f"User: {_PROMPT}\n\nAssistant: {_WORSE}"]},
    ),
}  # fmt: skip


def check_readers(schemas: Iterable[PreferenceSchema] = SCHEMAS) -> None:
    """Check in every schema that the better answer of a known row is read as chosen.

    Raises:
        RuntimeError: it is not; a fault of this program, not of the data.
    """
    for schema in schemas:
        for known in _KNOWN_ROWS[schema.name]:
            pair = schema.parse(known).pair
            if (pair.chosen, pair.rejected) != (_BETTER, _WORSE):
                raise RuntimeError(
                    f"The reader of {schema.name} takes the worse answer of a known row for the better one: chosen "
                    f"{pair.chosen!r}, rejected {pair.rejected!r}. This is a fault of filter_dataset, please report it."
                )
