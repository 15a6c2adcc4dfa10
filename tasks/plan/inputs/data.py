"""Find out before a run how many rows there are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from containers.contracts.configs.filter_dataset import FilterDatasetConfig, ValidationParts
from containers.contracts.configs.parts.row_filters import RowReading
from containers.contracts.funnel import Funnel
from containers.contracts.names import FUNNEL_FILE
from containers.data.formats import files
from containers.data.formats.errors import UnreadableFileError
from containers.harness.errors import BadDataError
from tasks.config.run import RunConfig
from tasks.config.sources import DatasetSource, RowSource
from tasks.sources.hub import cached_file

Origin = Literal["exact", "at most", "at least", "estimated", "unknown"]

_HELPSTEER3 = "nvidia/helpsteer3"
# Counted in the published preference subset.
_HELPSTEER3_ROWS, _HELPSTEER3_ENGLISH_ROWS, _HELPSTEER3_VALIDATION_ROWS = 38_459, 22_380, 2_017
_MAX_COUNTED_BYTES = 8 * 1024**3


@dataclass(frozen=True)
class Count:
    """A number of rows, pairs or prompts, and how reliable it is."""

    value: int
    origin: Origin

    def share(self, fraction: float) -> "Count":
        """That share of it, rounded up."""
        # 22,380 x 0.9 is 20,142.000000000004 in binary; that is no further row.
        return Count(math.ceil(round(self.value * fraction, 6)), self.origin)

    def less(self, other: "Count") -> "Count":
        """This count without the other."""
        return Count(self.value - other.value, self.origin)


@dataclass(frozen=True)
class DataSize:
    """How many examples each stage will see; None if that is unknown before the data is read.

    Attributes:
        pairs: of the training source, before any is held out or set aside; no split can give more.
    """

    words: str
    rows: Count | None
    pairs: Count | None
    train_pairs: Count | None
    validation_pairs: Count | None
    tune_pairs: Count | None
    test_pairs: Count | None
    policy_train_prompts: Count | None
    policy_eval_prompts: Count | None
    train_demonstrations: Count | None = None
    validation_demonstrations: Count | None = None


def data_size(
    config: RunConfig,
    *,
    filtered: Path | None = None,
    prompts: Path | None = None,
    demonstrations: Path | None = None,
) -> DataSize:
    """Size of the dataset before any filter has run: an upper bound, or the published figures of a known dataset.

    Args:
        filtered: the artifact of filter_dataset, if it exists already: its counts are exact.
        prompts: the same of filter_prompts.
        demonstrations: the same of filter_demonstrations.
    """
    found = _size_before_filters(config)
    funnel = None if filtered is None else _read_funnel(filtered)
    if funnel is not None:
        found = _as_counted(found, funnel)
    if config.prompts is not None:
        train, judged = _prompt_counts(config, config.prompts, filtered=prompts)
        found = replace(found, policy_train_prompts=train, policy_eval_prompts=judged)
    if config.demonstrations is not None:
        train, held_out = _demonstration_counts(config, config.demonstrations, filtered=demonstrations)
        found = replace(found, train_demonstrations=train, validation_demonstrations=held_out)
    return found


def _prompt_counts(
    config: RunConfig, source: DatasetSource, *, filtered: Path | None
) -> tuple[Count | None, Count | None]:
    """Prompts of a prompt set to train and to judge the policy."""
    funnel = None if filtered is None else _read_funnel(filtered)
    if funnel is not None:
        return Count(funnel.policy_train_prompts, "exact"), Count(funnel.policy_eval_prompts, "exact")
    filters = config.filter_prompts
    train, held_out = _split_rows(source, filters.max_rows, fraction=filters.evaluation_fraction)
    if held_out is None or held_out.value * filters.frozen_share < filters.minimum_frozen_prompts:
        return train, held_out
    return train, held_out.share(1 - filters.frozen_share)


def _demonstration_counts(
    config: RunConfig, source: DatasetSource, *, filtered: Path | None
) -> tuple[Count | None, Count | None]:
    """Demonstrations to train on, and to choose a checkpoint by."""
    funnel = None if filtered is None else _read_funnel(filtered)
    if funnel is not None:
        return Count(funnel.train_demonstrations, "exact"), Count(funnel.validation_demonstrations, "exact")
    filters = config.filter_demonstrations
    return _split_rows(source, filters.max_rows, fraction=filters.validation_fraction)


def _split_rows(source: DatasetSource, max_rows: int | None, *, fraction: float) -> tuple[Count | None, Count | None]:
    """Rows to train on and those held out, before any filter but max_rows."""
    rows = _files_rows(tuple(local_files(source)))
    if rows is None:
        return None, None
    if max_rows is not None:
        rows = Count(min(rows.value, max_rows), rows.origin)
    if source.holds_out_by_prompt:
        held_out = rows.share(fraction)
        return rows.less(held_out), held_out
    is_here = source.validation is not None and source.hub_id is None
    return rows, count_rows(Path(str(source.validation))) if is_here else None


def _as_counted(found: DataSize, funnel: Funnel) -> DataSize:
    return replace(
        found,
        words=f"{found.words.partition(': ')[0]}: counted as filter_dataset kept them",
        rows=Count(funnel.rows_read, "exact"),
        train_pairs=Count(funnel.train_pairs, "exact"),
        validation_pairs=Count(funnel.validation_pairs, "exact"),
        **{
            f"{part.name}_pairs": Count(part.num_pairs, "exact")
            for part in funnel.validation_parts
            if part.name != "frozen"
        },
        policy_train_prompts=Count(funnel.policy_train_prompts, "exact"),
        policy_eval_prompts=Count(funnel.policy_eval_prompts, "exact"),
    )


def _read_funnel(filtered: Path) -> Funnel | None:
    try:
        return Funnel.model_validate_json((filtered / FUNNEL_FILE).read_bytes())
    except (OSError, ValueError):
        return None


def _size_before_filters(config: RunConfig) -> DataSize:
    filters = config.pair_filters
    if config.dataset is None:
        others = {"prompts": config.prompts, "demonstrations": config.demonstrations}
        words = "; ".join(
            f"{name}: {', '.join(part.hub_id or part.train for _, part in source.parts)}"
            for name, source in others.items()
            if source is not None
        )
        words = f"no preferences; {words}"
        return DataSize(words, None, None, None, None, None, None, None, None)
    rows, validation, words = _source_rows(config.dataset, filters)
    if rows is None:
        return DataSize(words, None, None, None, validation, *_parts(validation, filters.validation_parts), None, None)
    pairs = rows if filters.data_percentage == 100 else rows.share(filters.data_percentage / 100)
    if filters.max_rows is not None:
        pairs = Count(min(pairs.value, filters.max_rows), pairs.origin)
    most = pairs
    if config.dataset.holds_out_by_prompt:
        validation = pairs.share(filters.validation_fraction)
        pairs = pairs.less(validation)
    train = pairs.share(1 - filters.policy_prompt_fraction)
    tune, test = _parts(validation, filters.validation_parts)
    if not filters.policy_prompt_fraction:
        return DataSize(words, rows, most, train, validation, tune, test, train, test)
    # A prompt has one pair or more.
    prompts = pairs.less(train)
    held_out = prompts.share(filters.eval_prompt_fraction)
    _, judged = _parts(held_out, filters.validation_parts.model_copy(update={"tune": 0.0}))
    return DataSize(words, rows, most, train, validation, tune, test, prompts.less(held_out), judged)


def _parts(held_out: Count | None, parts: ValidationParts) -> tuple[Count | None, Count | None]:
    """The tune part and the test part, as if each pair had a prompt of its own."""
    if held_out is None:
        return None, None
    whole = parts.tune + parts.test + parts.frozen
    shares = {"tune": parts.tune / whole, "test": parts.test / whole, "frozen": parts.frozen / whole}
    small = [name for name, share in shares.items() if share * held_out.value < parts.minimum_prompts]
    together = set(shares) if "test" in small else {"test", *small}
    test = held_out if len(together) == len(shares) else held_out.share(sum(shares[name] for name in together))
    return test if "tune" in together else held_out.share(shares["tune"]), test


def local_files(source: DatasetSource) -> dict[Path, RowReading]:
    """The data files of the training rows on this disk, fetched ones too, each with how its rows are read.

    Empty if a part is not here. Rows of a custom reader are in no file.
    """
    together: dict[Path, RowReading] = {}
    for _, part in source.parts:
        place = None if part.reader is not None else _local_place(part)
        found = [] if place is None else data_files(place)
        if not found:
            return {}
        together |= dict.fromkeys(found, part.reading)
    return together


def _local_place(source: RowSource) -> Path | None:
    """Path of the training rows on this disk; None if they are not here, or a pattern or split was fetched."""
    if source.hub_id is None:
        return Path(source.train)
    if source.split is not None:
        return None
    return cached_file("dataset", source.hub_id, source.train, revision=source.revision)


def data_files(place: Path) -> tuple[Path, ...]:
    """Files that the stage will read; empty if there are none, which the system check reports."""
    try:
        return files.data_files(place)
    except (BadDataError, OSError):
        return ()


def _source_rows(source: DatasetSource, filters: FilterDatasetConfig) -> tuple[Count | None, Count | None, str]:
    if source.mixture:
        return _mixture_rows(source)
    if source.reader is not None:
        return None, None, f"{source.train}: rows are known once {source.reader} has read it"
    if source.reading.makes_more_pairs:
        return None, None, f"{source.hub_id or source.train}: pairs are known once the rankings are read"
    if source.hub_id is not None:
        if source.hub_id.lower() != _HELPSTEER3 or source.reading.train_rows or source.reading.validation_rows:
            place = _local_place(source)
            if place is not None:
                return count_rows(place), None, f"{source.hub_id}, fetched: rows counted before any filter"
            return None, None, f"{source.hub_id}: rows are known once it is downloaded"
        english = filters.languages == ("english",) and filters.code_rows == "drop"
        rows = Count(_HELPSTEER3_ENGLISH_ROWS, "estimated") if english else Count(_HELPSTEER3_ROWS, "at most")
        return rows, Count(_HELPSTEER3_VALIDATION_ROWS, "at most"), f"{source.hub_id}: figures of the published set"
    train = count_rows(Path(source.train))
    validation = count_rows(Path(source.validation)) if source.validation is not None else None
    found = "rows counted before any filter" if train is not None else "no rows that can be counted yet"
    return train, validation, f"{source.train}: {found}"


def _mixture_rows(source: DatasetSource) -> tuple[Count | None, Count | None, str]:
    """The rows of all sources together: weights and filters only remove some."""
    name = " + ".join(part.name for part in source.mixture)
    if any(part.hub_id or part.reader or part.reading.makes_more_pairs for part in source.mixture):
        return None, None, f"{name}: rows are known once all is here and read"
    train = [count_rows(Path(part.train)) for part in source.mixture]
    validation = [count_rows(Path(part.validation)) for part in source.mixture if part.validation is not None]
    return _sum(train), _sum(validation) if validation else None, f"{name}: rows counted before weights and filters"


def _sum(counts: Sequence[Count | None]) -> Count | None:
    known = [count.value for count in counts if count is not None]
    return Count(sum(known), "at most") if len(known) == len(counts) else None


def count_rows(path: Path) -> Count | None:
    """Rows of a local jsonl, jsonl.gz or parquet file, or a folder of them, before any filter.

    Blank lines do not count. None if rows cannot be counted: nothing is there, it is damaged, nearly all of it is
    blank, or it is too large to be counted quickly.
    """
    return _files_rows(data_files(path))


def _files_rows(paths: Sequence[Path]) -> Count | None:
    try:
        counts = [files.count_rows(file, max_bytes=_MAX_COUNTED_BYTES) for file in paths]
    except (UnreadableFileError, OSError):
        return None
    known = [count for count in counts if count is not None]
    return Count(sum(known), "at most") if counts and len(known) == len(counts) else None
