"""Find out before a run how large its models are."""

from dataclasses import dataclass
from pathlib import Path

from containers.contracts.configs.build_base_model import BuildBaseModelConfig
from containers.contracts.names import BASE_FOLDER, MERGED_FOLDER
from containers.packing_traits import PLAIN, PackingTraits
from tasks.config.errors import ConfigError
from tasks.config.loading import config_files
from tasks.config.run import RunConfig
from tasks.config.sources import ModelSource
from tasks.config.yaml_reader import read_yaml_file
from tasks.plan.inputs.data import Origin, count_rows
from tasks.plan.inputs.model_shape import ModelShape, read_model_shape, read_packing_traits, shape_of_built_model
from tasks.sources.hub import cached_file

# build_base_model adds these tokens to the ranks of a file: end of text, start and end of a turn.
_SPECIAL_TOKENS = 3


@dataclass(frozen=True)
class FoundShape:
    """A model's shape, where it was read, whether the counts that follow are exact, and what prevents packs."""

    shape: ModelShape
    words: str
    origin: Origin
    traits: PackingTraits = PLAIN


def find_scorer_shape(source: ModelSource) -> FoundShape | None:
    """The shape of a reward model that was trained elsewhere; None if it is unknown here."""
    if source.path is not None:
        folders = [Path(source.path) / name for name in ("", MERGED_FOLDER, BASE_FOLDER)]
        folder = next((folder for folder in folders if (folder / "config.json").is_file()), folders[0])
        source = source.model_copy(update={"path": str(folder)})
    try:
        return _named_shape(source)
    except ConfigError:  # the stage reports what is wrong with it
        return None


def find_model_shape(config: RunConfig, *, model_config: Path | None = None) -> FoundShape | None:
    """The shape of the model that the run starts from, without network; None if there is no config.json here.

    Raises:
        ConfigError: a config.json is there and cannot be used, or `tokenizer_file` cannot be read.
    """
    if model_config is not None:
        return _read(model_config, str(model_config))
    if config.build_base_model is not None:
        return _built_shape(config.build_base_model, config.tokenizer_file)
    return None if config.base_model is None else _named_shape(config.base_model)


def _read(path: Path, words: str) -> FoundShape:
    shape = read_model_shape(path)
    return FoundShape(shape, words, "exact" if shape.is_exact else "estimated", read_packing_traits(path))


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
        return _read(path, str(path)) if path.is_file() else None
    if model.hub_id is None:
        return None
    cached = cached_file("model", model.hub_id, "config.json", revision=model.revision)
    if cached is not None:
        return _read(cached, f"{model.hub_id}, config.json in the local cache")
    for path in config_files("model_shapes"):
        named = read_yaml_file(path, shown=str(path)).get("hub_id")
        if isinstance(named, str) and named.lower() == model.hub_id.lower():
            return _read(path, f"{model.hub_id}, {path}")
    return None


def _ranks(path: Path) -> int:
    counted = count_rows(path)
    if counted is None:
        why = "does not exist" if not path.exists() else "cannot be read as lines"
        raise ConfigError(f"tokenizer_file: {path.absolute().resolve()} {why}. Correct the path.")
    return counted.value
