"""The models and data that a run names: what each is called, and how it is looked at and fetched."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from containers.contracts.configs.answer_sets import StandardSet
from containers.contracts.configs.evaluate_reward_model import SuiteFile
from containers.contracts.configs.parts.judges import LanguageModelJudge
from tasks.checks.sets import probe_set
from tasks.config.run import RunConfig
from tasks.config.sources import COMMIT, DatasetSource, ModelSource, model_source
from tasks.pipeline.inputs import REFERENCE_KEY
from tasks.pipeline.reward_models import named_reward_model, probe_reward_model
from tasks.sources.hub import RepoKind, hub_revision
from tasks.sources.peek import DEMONSTRATIONS, PREFERENCES, PROMPTS, DataKind
from tasks.sources.resolve import Probe, probe_dataset, probe_file, probe_model, resolve_dataset, resolve_model
from tasks.sources.suites import probe_suite, resolve_suite

_MODEL = "safetensors, tokenizer, chat template"
_SCORING_MODEL = "safetensors with a score head, tokenizer, chat template"


@dataclass(frozen=True)
class HubPlace:
    """Where a source is on the hub, by the key of the configuration that names it."""

    key: str
    kind: RepoKind
    hub_id: str
    revision: str

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, and so never moves."""
        return COMMIT.fullmatch(self.revision) is not None

    def commit(self, token: str | None) -> str:
        """The commit that the revision is now.

        Raises:
            SourceError: the hub does not say.
        """
        return hub_revision(self.kind, self.hub_id, revision=self.revision, token=token).commit


@dataclass(frozen=True)
class NamedSource:
    """A model or data that a run names.

    Attributes:
        name: what the system check calls it.
        places: where it is on the hub; none: it is on this disk.
        probe: look at it without fetching it, by a token of the hub. Raises SourceError.
        fetch: fetch what is not on this disk yet, by the same token. Raises SourceError.
    """

    name: str
    wanted: str
    places: tuple[HubPlace, ...]
    probe: Callable[[str | None], Probe]
    fetch: Callable[[str | None], object]

    @property
    def is_on_hub(self) -> bool:
        """Whether all or a part of it is on the hub."""
        return bool(self.places)


def named_sources(config: RunConfig, *, ask_hub: bool = True) -> tuple[NamedSource, ...]:
    """All models and data of a run that no stage makes, in the order in which it needs them.

    Args:
        ask_hub: also look at the base model of an adapter on this disk, if that is on the hub.
    """
    return (*_base_model(config), *_datasets(config), *_reward_models(config, ask_hub), *_rest(config))


def _base_model(config: RunConfig) -> Iterator[NamedSource]:
    if config.base_model is not None:
        yield _model("base model", config.base_model, key="base_model")


def _datasets(config: RunConfig) -> Iterator[NamedSource]:
    kinds: tuple[tuple[DatasetSource | None, DataKind], ...] = (
        (config.dataset, PREFERENCES),
        (config.prompts, PROMPTS),
        (config.demonstrations, DEMONSTRATIONS),
    )
    return (_dataset(source, kind) for source, kind in kinds if source is not None)


def _reward_models(config: RunConfig, ask_hub: bool) -> Iterator[NamedSource]:
    if config.reward_model is not None:
        yield _reward_model("reward model", config.reward_model, key="reward_model", ask_hub=ask_hub)
    for number, other in enumerate(config.further_reward_models, start=2):
        yield _reward_model(f"reward model {number}", model_source(other), ask_hub=ask_hub)
    for judge in config.judging_models:
        name = f"judge {judge.name}"
        if isinstance(judge, LanguageModelJudge):
            yield _model(name, model_source(judge), key=name)
        else:
            yield _reward_model(name, model_source(judge), ask_hub=ask_hub)


def _rest(config: RunConfig) -> Iterator[NamedSource]:
    if (reference := config.filter_dataset.polarity.reference_reward_model) is not None:
        source = model_source(reference)
        yield _model("reference reward model", source, key=REFERENCE_KEY, wanted=_SCORING_MODEL)
    if (path := config.tokenizer_file) is not None:
        yield NamedSource(
            name="tokenizer_file",
            wanted="a readable file",
            places=(),
            probe=lambda _: probe_file(path, key="tokenizer_file"),
            fetch=lambda _: None,
        )
    for suite in config.evaluate_reward_model.suites:
        yield _questions(f"suite {suite.name}", "data files", suite, probe_suite)
    for one in config.sets:
        yield _questions(f"set {one.name}", "questions that can be used", one, probe_set)


def _dataset(source: DatasetSource, kind: DataKind) -> NamedSource:
    parts = [(f"{kind.section}.mixture {name}" if name else kind.section, part) for name, part in source.parts]
    return NamedSource(
        name=kind.section,
        wanted="data files",
        places=tuple(
            HubPlace(key, "dataset", part.hub_id, part.revision or "") for key, part in parts if part.hub_id is not None
        ),
        probe=lambda token: probe_dataset(source, token=token, kind=kind),
        fetch=lambda token: resolve_dataset(source, token=token, kind=kind),
    )


def _model(name: str, source: ModelSource, *, key: str, wanted: str = _MODEL) -> NamedSource:
    return NamedSource(
        name=name,
        wanted=wanted,
        places=_places_of_model(source, key),
        probe=lambda token: probe_model(source, token=token, key=key),
        fetch=lambda token: resolve_model(source, token=token, key=key),
    )


def _reward_model(name: str, source: ModelSource, *, ask_hub: bool, key: str | None = None) -> NamedSource:
    return NamedSource(
        name=name,
        wanted=_SCORING_MODEL,
        places=_places_of_model(source, key or name),
        probe=lambda token: probe_reward_model(source, token=token, key=key or name, ask_hub=ask_hub),
        fetch=lambda _: named_reward_model(source),
    )


def _questions(name: str, wanted: str, source: SuiteFile | StandardSet, probe: Callable[..., Probe]) -> NamedSource:
    return NamedSource(
        name=name,
        wanted=wanted,
        places=() if source.hub_id is None else (HubPlace(name, "dataset", source.hub_id, source.revision or ""),),
        probe=lambda token: probe(source, token=token),
        fetch=lambda token: resolve_suite(source, token=token),
    )


def _places_of_model(source: ModelSource, key: str) -> tuple[HubPlace, ...]:
    return () if source.hub_id is None else (HubPlace(key, "model", source.hub_id, source.revision or ""),)
