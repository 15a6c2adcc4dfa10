"""What can be known about a run before anything runs: how many rows there are, and how large the model is."""

import gzip
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from containers.contracts.stage_configs import BuildBaseModelConfig, FilterDatasetConfig
from flows.config_errors import ConfigError
from flows.config_loading import config_files
from flows.model_shape import ModelShape, read_model_shape, shape_of_built_model
from flows.run_config import RunConfig
from flows.yaml_reading import read_yaml_file
from tasks.sources import DatasetSource, ModelSource

Origin = Literal["exact", "at most", "estimated", "unknown"]

_HELPSTEER3 = "nvidia/helpsteer3"
# Counted in the published preference subset.
_HELPSTEER3_ROWS, _HELPSTEER3_ENGLISH_ROWS, _HELPSTEER3_VALIDATION_ROWS = 38_459, 22_380, 2_017
_MAX_COUNTED_BYTES = 8 * 1024**3
_ROW_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
_CHUNK_BYTES = 1024 * 1024
# build_base_model adds to the ranks of a file: end of text, start and end of a turn.
_SPECIAL_TOKENS = 3


@dataclass(frozen=True)
class Count:
    """A number of rows, pairs or prompts, and what it is worth."""

    value: int
    origin: Origin

    def share(self, fraction: float) -> "Count":
        """That share of it, rounded up."""
        # 22,380 x 0.9 is 20,142.000000000004 in binary; that is no further row.
        return Count(math.ceil(round(self.value * fraction, 6)), self.origin)

    def less(self, other: "Count") -> "Count":
        """What is left of it without the other."""
        return Count(self.value - other.value, self.origin)


@dataclass(frozen=True)
class DataSize:
    """How many examples each stage will see; None where that is not known before the data is read.

    Attributes:
        pairs: of the training source, before any is held out or set aside; no split can give more.
    """

    words: str
    rows: Count | None
    pairs: Count | None
    train_pairs: Count | None
    validation_pairs: Count | None
    policy_train_prompts: Count | None
    policy_eval_prompts: Count | None


@dataclass(frozen=True)
class FoundShape:
    """A model's shape, where it was read, and whether the counts that follow are the model's own."""

    shape: ModelShape
    words: str
    origin: Origin


def data_size(config: RunConfig) -> DataSize:
    """What the dataset will give, before any filter has run: so an upper bound, or known figures of a known dataset."""
    filters = config.filter_dataset
    rows, validation, words = _source_rows(config.dataset, filters)
    if rows is None:
        return DataSize(words, None, None, None, validation, None, None)
    pairs = most = rows if filters.max_rows is None else Count(min(rows.value, filters.max_rows), rows.origin)
    if config.dataset.validation is None:
        validation = pairs.share(filters.validation_fraction)
        pairs = pairs.less(validation)
    train = pairs.share(1 - filters.policy_prompt_fraction)
    if not filters.policy_prompt_fraction:
        return DataSize(words, rows, most, train, validation, train, validation)
    # A prompt has one pair or more.
    prompts = pairs.less(train)
    held_out = prompts.share(filters.policy_eval_prompt_fraction)
    return DataSize(words, rows, most, train, validation, prompts.less(held_out), held_out)


def find_model_shape(config: RunConfig, *, model_config: Path | None = None) -> FoundShape | None:
    """The shape of the model that the run starts from, without network; None where no config.json is at hand.

    Raises:
        ConfigError: a config.json is there and cannot be used, or `tokenizer_file` cannot be read.
    """
    if model_config is not None:
        return _found(read_model_shape(model_config), str(model_config))
    if config.build_base_model is not None:
        return _built_shape(config.build_base_model, config.tokenizer_file)
    return None if config.base_model is None else _named_shape(config.base_model)


def _found(shape: ModelShape, words: str) -> FoundShape:
    return FoundShape(shape, words, "exact" if shape.is_exact else "estimated")


def _built_shape(build: BuildBaseModelConfig, tokenizer_file: Path | None) -> FoundShape:
    if tokenizer_file is None:
        size = build.vocabulary_size or 0
        shape = shape_of_built_model(build, vocabulary_size=size)
        return FoundShape(shape, f"build_base_model, vocabulary of at most {size:,}", "at most")
    size = _ranks(tokenizer_file) + _SPECIAL_TOKENS
    shape = shape_of_built_model(build, vocabulary_size=size)
    return FoundShape(shape, f"build_base_model, vocabulary of {size:,} from {tokenizer_file}", "exact")


def _named_shape(model: ModelSource) -> FoundShape | None:
    if model.path is not None:
        path = Path(model.path) / "config.json"
        return _found(read_model_shape(path), str(path)) if path.is_file() else None
    if model.hub_id is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model.hub_id, "config.json", revision=model.revision)
    if isinstance(cached, str):
        return _found(read_model_shape(Path(cached)), f"{model.hub_id}, config.json in the local cache")
    for path in config_files("model_shapes"):
        named = read_yaml_file(path, shown=str(path)).get("hub_id")
        if isinstance(named, str) and named.lower() == model.hub_id.lower():
            return _found(read_model_shape(path), f"{model.hub_id}, {path}")
    return None


def _source_rows(source: DatasetSource, filters: FilterDatasetConfig) -> tuple[Count | None, Count | None, str]:
    if source.hub_id is not None:
        if source.hub_id.lower() != _HELPSTEER3:
            return None, None, f"{source.hub_id}: rows are known once it is downloaded"
        english = filters.languages == ("english",) and filters.code_rows == "drop"
        rows = Count(_HELPSTEER3_ENGLISH_ROWS, "estimated") if english else Count(_HELPSTEER3_ROWS, "at most")
        return rows, Count(_HELPSTEER3_VALIDATION_ROWS, "at most"), f"{source.hub_id}: figures of the published set"
    train = count_rows(Path(source.train))
    validation = count_rows(Path(source.validation)) if source.validation is not None else None
    found = "rows counted before any filter" if train is not None else "no rows that can be counted yet"
    return train, validation, f"{source.train}: {found}"


def count_rows(path: Path) -> Count | None:
    """Rows of a local jsonl, jsonl.gz or parquet file, or a folder of them, before any filter.

    None where they cannot be counted: nothing is there, it is damaged, or larger than would be counted in good time.
    """
    if path.is_dir():
        counts = [count_rows(file) for file in path.iterdir() if file.name.endswith(_ROW_SUFFIXES)]
        known = [count.value for count in counts if count is not None]
        return Count(sum(known), "at most") if counts and len(known) == len(counts) else None
    if not path.is_file():
        return None
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as stream:
            lines, read, last = 0, 0, b"\n"
            while (chunk := stream.read(_CHUNK_BYTES)) and read < _MAX_COUNTED_BYTES:
                lines, read, last = lines + chunk.count(b"\n"), read + len(chunk), chunk[-1:]
    except (OSError, EOFError):
        return None
    return Count(lines + (last != b"\n"), "at most") if read < _MAX_COUNTED_BYTES else None


def _parquet_rows(path: Path) -> Count | None:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        return None
    try:
        return Count(parquet.ParquetFile(path).metadata.num_rows, "at most")
    except (OSError, ArrowException):
        return None


def _ranks(path: Path) -> int:
    counted = count_rows(path)
    if counted is None:
        why = "does not exist" if not path.exists() else "cannot be read as lines"
        raise ConfigError(f"tokenizer_file: {path.absolute().resolve()} {why}. Correct the path.")
    return counted.value
