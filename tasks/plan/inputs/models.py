"""Find out before a run how large its models are."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from containers.contracts.configs.build_base_model import BuildBaseModelConfig
from containers.contracts.digests import DamagedArtifactError, artifact_digest, read_manifest
from containers.contracts.names import ADAPTER_FOLDER, ADAPTER_WEIGHTS_FILE, BASE_FOLDER, MERGED_FOLDER, StageName
from containers.packing_traits import PLAIN, PackingTraits
from tasks.config.errors import ConfigError
from tasks.config.loading import config_files
from tasks.config.run import RunConfig
from tasks.config.sources import ModelSource
from tasks.config.yaml_reader import read_yaml_file
from tasks.plan.inputs.data import Origin, count_rows
from tasks.plan.inputs.model_shape import ModelShape, read_model_shape, read_packing_traits, shape_of_built_model
from tasks.sources.hub import cached_file

# In the output folder of a run that trained it.
_OF_A_RUN = f"artifacts/{StageName.TRAIN_REWARD_MODEL}/{MERGED_FOLDER}"
# build_base_model adds these tokens to the ranks of a file: end of text, start and end of a turn.
_SPECIAL_TOKENS = 3


@dataclass(frozen=True)
class FoundShape:
    """A model's shape, where it was read, whether the counts that follow are exact, and what prevents packs.

    Attributes:
        adapter_bytes: of a reward model that is an adapter of the policy's start model: all that it has of its own.
    """

    shape: ModelShape
    words: str
    origin: Origin
    traits: PackingTraits = PLAIN
    adapter_bytes: int | None = None


def find_scorer_shape(source: ModelSource, *, starts: Collection[str] = ()) -> FoundShape | None:
    """The shape of a model that was trained elsewhere, to score or to judge; None if it is unknown here.

    Args:
        starts: what the policy's start model is known by; the reward model may be an adapter of it.
    """
    if source.path is not None:
        folders = [Path(source.path) / name for name in ("", MERGED_FOLDER, BASE_FOLDER, _OF_A_RUN)]
        folder = next((folder for folder in folders if (folder / "config.json").is_file()), folders[0])
        source = source.model_copy(update={"path": str(folder)})
    try:
        found = _named_shape(source)
    except ConfigError:  # the stage reports what is wrong with it
        return None
    if found is None or source.path is None:
        return found
    return replace(found, adapter_bytes=_adapter_bytes(Path(source.path), starts))


def known_starts(config: RunConfig, artifacts: Mapping[StageName, Path]) -> frozenset[str]:
    """By what lineages call the model that policy and reward model start from: its digest, or the folder of its files.

    Args:
        artifacts: folders of the stages whose result exists; before the run has made the model, nothing is known.
    """
    maker = StageName.TRAIN_SFT if config.train_sft is not None else StageName.BUILD_BASE_MODEL
    if config.train_sft is not None or config.build_base_model is not None:
        try:
            return frozenset({artifact_digest(read_manifest(artifacts[maker]))} if maker in artifacts else ())
        except DamagedArtifactError:  # it will be made again
            return frozenset()
    base = config.base_model
    if base is None:
        return frozenset()
    if base.path is not None:
        return frozenset({str(Path(base.path).expanduser().absolute().resolve())})
    return frozenset({f"hub:{base.revision}"})


def _adapter_bytes(folder: Path, starts: Collection[str]) -> int | None:
    """Size of the adapter beside a merged model whose training started from one of these; None if there is none."""
    artifact = folder.parent
    weights = artifact / ADAPTER_FOLDER / ADAPTER_WEIGHTS_FILE
    if not weights.is_file():
        return None
    try:
        lineage = read_manifest(artifact).lineage
    except DamagedArtifactError:
        return None
    is_same = any(
        entry.name == "start_model" and (entry.digest in starts or entry.origin in starts) for entry in lineage
    )
    return weights.stat().st_size if is_same else None


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
