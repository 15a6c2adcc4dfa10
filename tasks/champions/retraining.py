"""Load a retraining: the run that it starts from, its data pinned to their present commits, and its rules."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.names import StageName
from tasks.champions.book import ChampionBook
from tasks.champions.record import Kind
from tasks.config.errors import ConfigError, InvalidConfigError, Mistake, near_match
from tasks.config.loading import LoadedConfig, config_files, load_run_config
from tasks.config.run import RunConfig
from tasks.config.sources import DatasetSource, RowSource
from tasks.sources.hub import hub_token
from tasks.sources.pinned import commit_of_now

_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Retraining:
    """One retraining.

    Attributes:
        loaded: the run, with its dataset and its models at the commits that their branches have now.
        overrides: changes to the file, in the form of `--set`.
        never_new: why new data can never come; empty: they can.
    """

    loaded: LoadedConfig
    overrides: tuple[str, ...]
    never_new: str

    @property
    def config(self) -> RunConfig:
        """The run."""
        return self.loaded.config

    @property
    def with_policy(self) -> bool:
        """Whether a policy is retrained too."""
        return self.config.retrain.models == "reward_model_and_policy"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The models that are decided on, in order."""
        return ("reward_model", "policy") if self.with_policy else ("reward_model",)

    @property
    def command(self) -> str:
        """Command that repeats it in a terminal."""
        sets = "".join(f" --set {json.dumps(item) if ' ' in item else item}" for item in self.overrides)
        return f"rlhf retrain -c {self.loaded.path}{sets}"

    def rules_text(self, kind: Kind) -> str:
        """The rules of the decision, as JSON. Other rules need a new decision."""
        gate = getattr(self.config.gates, kind)
        rules = {"gate": gate.rules(), "retrain": self.config.retrain.model_dump(mode="json", exclude={"models"})}
        return json.dumps(rules, sort_keys=True)

    def book(self, kind: Kind) -> ChampionBook:
        """The line of champions that it may add to."""
        return champion_book(self.config, kind)


def champion_book(config: RunConfig, kind: Kind) -> ChampionBook:
    """The line of champions of a run."""
    return ChampionBook(config.store_dir, run_name=config.run.name, kind=kind)


def load_retraining(start_from: str, settings: Sequence[str] = (), *, profile: str | None = None) -> Retraining:
    """Load the retraining of that run, with its data at their present commits.

    Args:
        start_from: the name of a file in configs/runs without its ending, or a path.
        settings: `section.key=value`, as `--set`.
        profile: as `--profile`.

    Raises:
        ConfigError: there is no such run, or it has mistakes.
        SourceError: the hub does not give the present commit of the dataset or a model.
    """
    path = run_config_path(start_from)
    loaded = load_run_config(path, overrides=settings, profile=profile)
    if loaded.config.reward_model is not None:
        raise InvalidConfigError(
            str(path), [Mistake("reward_model", "a retraining trains its own reward model. Leave it out here.")]
        )
    dataset = loaded.config.dataset
    if dataset is None:
        raise InvalidConfigError(
            str(path), [Mistake("dataset", "a retraining looks for new preferences, and this run reads none.")]
        )
    last = StageName.EVALUATE_POLICY
    if loaded.config.retrain.models == "reward_model":
        last = StageName.EVALUATE_REWARD_MODEL
    own = [f"run.until={last}", "run.again_from=null"]
    pins, never_new = _pinned_sources(dataset)
    pins += _pinned_models(loaded.config)
    pinned = load_run_config(path, overrides=[*settings, *own, *pins], profile=profile)
    if not pinned.config.has_reward_model:
        raise InvalidConfigError(
            str(path), [Mistake("train_policy.rewards", "a retraining trains a reward model, and no reward is one.")]
        )
    changed = (*settings, *([f"gpu_profile={profile}"] if profile else []))
    return Retraining(loaded=pinned, overrides=tuple(changed), never_new=never_new)


def _pinned_sources(dataset: DatasetSource) -> tuple[list[str], str]:
    """Settings that pin each branch of the dataset to its present commit; and why new data can never come, if so.

    Raises:
        SourceError: the hub does not give the present commit of a branch.
    """
    on_hub = [(name, part) for name, part in dataset.parts if part.hub_id is not None]
    commits = {name: _commit_of_now(part) for name, part in on_hub}
    if dataset.mixture:
        sources = [
            source.model_copy(update={"revision": commits.get(source.name)}).model_dump(mode="json")
            for source in dataset.mixture
        ]
        pins = [f"dataset.mixture={json.dumps(sources)}"] if commits else []
    else:
        pins = [f"dataset.revision={commit}" for commit in commits.values()]
    # A local file may hold new rows any day.
    if len(on_hub) < len(dataset.parts) or any(part.revision != commits[name] for name, part in on_hub):
        return pins, ""
    return pins, _never_new(on_hub)


def _commit_of_now(source: RowSource) -> str:
    return commit_of_now("dataset", source.hub_id or "", source.revision or "", token=hub_token())


def _pinned_models(config: RunConfig) -> list[str]:
    """Settings that pin the base model and the model that judges the labels; a moved branch is a new model.

    Raises:
        SourceError: the hub does not give the present commit of a branch.
    """
    reference = config.filter_dataset.polarity.reference_reward_model
    named = {"base_model": config.base_model, "filter_dataset.polarity.reference_reward_model": reference}
    return [
        f"{key}.revision={commit_of_now('model', model.hub_id, model.revision or '', token=hub_token())}"
        for key, model in named.items()
        if model is not None and model.hub_id is not None
    ]


def _never_new(sources: Sequence[tuple[str, RowSource]]) -> str:
    """Text for a dataset whose sources all name a commit."""
    if len(sources) > 1:
        named = ", ".join(name for name, _ in sources)
        return (
            f"Every source of dataset.mixture ({named}) names a commit, which never changes; name a branch, such as "
            f"`main`, to train on what is new there."
        )
    name, source = sources[0]
    key = f"dataset.mixture {name}: revision" if name else "dataset.revision"
    return (
        f"{key} is the commit {(source.revision or '')[:12]}, which never changes; name a branch, such as `main`, to "
        f"train on what is new there."
    )


def run_config_path(start_from: str) -> Path:
    """Return the file of that run: the path itself, or the file of that name in configs/runs.

    Raises:
        ConfigError: there is no run of that name.
    """
    if start_from.endswith(_ENDINGS):
        return Path(start_from)
    files = {path.stem: path for path in config_files("runs")}
    if start_from not in files:
        hint = near_match(start_from, sorted(files))
        raise ConfigError(f"`{start_from}`: there is no run of that name. {hint}".rstrip())
    return files[start_from]
