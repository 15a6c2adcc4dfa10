"""What a retraining works on: the run that it starts from, its data pinned to what they are now, and its demands."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.names import StageName
from flows.config_errors import ConfigError, near_match
from flows.config_loading import LoadedConfig, config_files, load_run_config
from flows.run_config import RunConfig
from tasks.champion_book import ChampionBook
from tasks.champion_record import Kind
from tasks.hub import hub_revision, hub_token

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Retraining:
    """One retraining.

    Attributes:
        loaded: the run, with its dataset at the commit that its branch has now.
        overrides: what was changed from the file, as `--set` has it.
        never_new: why no new data can ever come; empty: they can.
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
        """What is decided on, in order."""
        return ("reward_model", "policy") if self.with_policy else ("reward_model",)

    @property
    def command(self) -> str:
        """How to repeat it on a terminal."""
        sets = "".join(f" --set {json.dumps(item) if ' ' in item else item}" for item in self.overrides)
        return f"rlhf retrain -c {self.loaded.path}{sets}"

    def rules_text(self, kind: Kind) -> str:
        """What decides beside the models, as JSON: other demands ask for another decision."""
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
    """The retraining of that run as its data are now.

    Args:
        start_from: the name of a file in configs/runs without its ending, or a path.
        settings: `section.key=value`, as `--set`.
        profile: as `--profile`.

    Raises:
        ConfigError: there is no such run, or it has mistakes.
        SourceError: the hub does not say what the dataset is now.
    """
    path = run_config_path(start_from)
    loaded = load_run_config(path, overrides=settings, profile=profile)
    last = StageName.EVALUATE_POLICY
    if loaded.config.retrain.models == "reward_model":
        last = StageName.EVALUATE_REWARD_MODEL
    own = [f"run.until={last}", "run.again_from=null"]
    source = loaded.config.dataset
    never_new = ""
    if source.hub_id is not None and source.revision is not None:
        if _COMMIT.fullmatch(source.revision):
            never_new = (
                f"dataset.revision is the commit {source.revision[:12]}, which never changes; name a branch, such as "
                f"`main`, to train on what is new there."
            )
        else:
            found = hub_revision("dataset", source.hub_id, revision=source.revision, token=hub_token())
            own.append(f"dataset.revision={found.commit}")
    pinned = load_run_config(path, overrides=[*settings, *own], profile=profile)
    changed = (*settings, *([f"gpu_profile={profile}"] if profile else []))
    return Retraining(loaded=pinned, overrides=tuple(changed), never_new=never_new)


def run_config_path(start_from: str) -> Path:
    """The file of that run: a path as it is, a name among configs/runs.

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
