"""Load a comparison: the run of each arm and seed, and whether they compare. All mistakes at once, before any start."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import JsonValue, ValidationError

from containers.contracts.names import StageName
from tasks.arms.file import ArmsFile
from tasks.arms.shared import signatures
from tasks.config.errors import ConfigError, InvalidConfigError, Mistake, mistakes_of
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.config.run import RunConfig
from tasks.config.yaml_reader import read_yaml_file
from tasks.run.changes import changed_keys, flat

# The arms differ in these anyway.
_NAMES = ("run.name", "run.output_dir", "run.store_dir", "run.policy_seed")


@dataclass(frozen=True)
class Arm:
    """One training of one arm.

    Attributes:
        label: the arm for people, with its seed if there are several: `grpo, seed 1`.
        settings: the keys in which the arm differs from the run that all start from.
        loaded: its run.
    """

    name: str
    seed: int
    label: str
    settings: Mapping[str, JsonValue]
    loaded: LoadedConfig

    @property
    def config(self) -> RunConfig:
        """Its run."""
        return self.loaded.config

    @property
    def report(self) -> str:
        """Its report, from the folder of the comparison."""
        return f"arms/{self.config.output_dir.name}/report.html"


@dataclass(frozen=True)
class Comparison:
    """A checked comparison.

    Attributes:
        path: its file, as the user named it.
        arms: every arm with the first seed, then every arm with the second, and so on: a budget that is used up leaves
            whole comparisons.
    """

    path: Path
    file: ArmsFile
    arms: tuple[Arm, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The arms in the order of the file."""
        return tuple(dict.fromkeys(arm.name for arm in self.arms))

    @property
    def own_run(self) -> RunConfig:
        """The run of the comparison itself: servers, profile and store of the first arm, with its own name."""
        first = self.arms[0].config
        run = first.run.model_copy(
            update={
                "name": self.file.name,
                "output_dir": self.file.folder,
                "store_dir": self.file.store,
                "policy_seed": None,
                "max_gpu_hours": None,
            }
        )
        return first.model_copy(update={"run": run})

    @property
    def same_start(self) -> bool:
        """Whether all arms start from the same model."""
        return len({signatures(arm.config).get("start_model") for arm in self.arms}) == 1

    @property
    def same_rewards(self) -> bool:
        """Whether all arms are judged by the same rewards, of the same reward model."""
        return len({_rewards(arm.config) for arm in self.arms}) == 1

    @property
    def differences(self) -> dict[str, dict[str, JsonValue]]:
        """Key → arm → its value, of every key in which some arms differ; a key that an arm lacks is not there.

        Of a stage that only some arms have, the keys in which these differ count, and that they have it.
        """
        trees = {arm.name: _tree(arm.config) for arm in self.arms}
        having = {stage: {arm.name for arm in self.arms if arm.config.takes_part(stage)} for stage in StageName}
        found: dict[str, dict[str, JsonValue]] = {
            stage.value: {name: "takes part" for name in self.names if name in names}
            for stage, names in having.items()
            if 0 < len(names) < len(trees)
        }
        for key in changed_keys(trees):
            values = {name: tree[key] for name, tree in trees.items() if key in tree}
            if len(values) == len(trees) or len({json.dumps(value) for value in values.values()}) > 1:
                found[key] = values
        return found


def load_comparison(path: Path, *, overrides: Sequence[str] = (), profile: str | None = None) -> Comparison:
    """Load the comparison in that file.

    Args:
        overrides: keys of all arms, as `--set` has them; they win.
        profile: GPU profile of all arms.

    Raises:
        ConfigError: the file cannot be read.
        InvalidConfigError: it or an arm has mistakes, or the arms do not compare; lists all of them.
    """
    if not path.is_file():
        raise ConfigError(f"{path.absolute()} is no file. Examples of comparisons are in configs/arms.")
    tree = read_yaml_file(path, shown=str(path))
    if "arms" not in tree:
        raise ConfigError(
            f"{path} is no comparison: it has no `arms`. A run starts with `rlhf run -c {path}`; examples of "
            "comparisons are in configs/arms."
        )
    try:
        file = ArmsFile.model_validate(tree)
    except ValidationError as error:
        raise InvalidConfigError(str(path), mistakes_of(error, ArmsFile)) from error
    mistakes = [Mistake(key, text) for key, text in file.problems()]
    mistakes += _set_by_the_comparison(file, overrides)
    load = partial(_arm, file, overrides=overrides, profile=profile)
    arms: list[Arm] = []
    for seed in file.seeds:
        for name, settings in file.settings_of_arms():
            try:
                arms.append(load(name, settings, seed=seed))
            except InvalidConfigError as error:
                mistakes += [Mistake(f"arms.{name}", str(mistake)) for mistake in error.mistakes]
    comparison = Comparison(path, file, _on_the_same_prompts(arms, load))
    mistakes += _what_does_not_compare(comparison.arms)
    if mistakes:
        raise InvalidConfigError(str(path), tuple(dict.fromkeys(mistakes)))
    return comparison


def _set_by_the_comparison(file: ArmsFile, overrides: Sequence[str]) -> Iterator[Mistake]:
    """Keys that would have no effect, since each arm has its own."""
    of_arms = [key for _, settings in file.settings_of_arms() for key in settings]
    for key in dict.fromkeys((*file.set, *of_arms, *(item.partition("=")[0].strip() for item in overrides))):
        if key in _NAMES or key == "run":
            yield Mistake(key, "is its own for each arm: set name, output_dir, store_dir or seeds of the comparison.")


def _arm(
    file: ArmsFile,
    name: str,
    settings: Mapping[str, JsonValue],
    *,
    seed: int,
    overrides: Sequence[str],
    profile: str | None,
    more: Sequence[str] = (),
) -> Arm:
    run_name = file.run_name(name, seed)
    folder = file.folder / "arms" / run_name.removeprefix(f"{file.name}-")
    own: dict[str, JsonValue] = {
        "run.name": run_name,
        "run.output_dir": str(folder),
        "run.store_dir": str(file.store),
        "run.policy_seed": seed,
    }
    loaded = load_run_config(
        file.start_from,
        overrides=[*_sets(file.set), *_sets(settings), *overrides, *more, *_sets(own)],
        profile=profile,
    )
    label = f"{name}, seed {seed}" if len(file.seeds) > 1 else name
    return Arm(name, seed, label, settings, loaded)


def _sets(keys: Mapping[str, JsonValue]) -> list[str]:
    """The keys in the form of `--set`; JSON is YAML."""
    return [f"{key}={json.dumps(value)}" for key, value in keys.items()]


def _on_the_same_prompts(arms: Sequence[Arm], load: Callable[..., Arm]) -> tuple[Arm, ...]:
    """The arms, with the prompts of pairs divided for all as for those that train on rewards.

    Alone, a policy of pairs is judged by all prompts that are set aside; beside others, by the same as they.
    """
    if all(arm.config.policy_on_rewards is None for arm in arms):
        return tuple(arms)
    return tuple(_as_on_rewards(arm, load) for arm in arms)


def _as_on_rewards(arm: Arm, load: Callable[..., Arm]) -> Arm:
    config = arm.config
    filters = config.filter_dataset
    if config.prompts is not None or config.train_dpo is None or filters.policy_eval_prompt_fraction is not None:
        return arm
    share = f"filter_dataset.policy_eval_prompt_fraction={filters.eval_prompt_fraction}"
    return load(arm.name, arm.settings, seed=arm.seed, more=(share,))


def _what_does_not_compare(arms: Sequence[Arm]) -> Iterator[Mistake]:
    """What makes arms differ in what judges them."""
    if not arms:
        return
    first, told = arms[0], set[str]()
    for arm in arms:
        if arm.name in told:
            continue
        told.add(arm.name)
        key = f"arms.{arm.name}"
        if not arm.config.has_policy:
            yield Mistake(key, "has no policy that could be compared: name `dataset` or `prompts`.")
        if arm.config.run.until is not None:
            yield Mistake(key, "run.until ends it before its policy is judged. Leave it out.")
        if arm.config.run.max_gpu_hours is not None:
            yield Mistake(key, "run.max_gpu_hours is that of one run. Set max_gpu_hours of the comparison.")
        differ = sorted(changed_keys({"first": _what_judges(first.config), "this": _what_judges(arm.config)}))
        if differ:
            yield Mistake(
                key,
                f"differs from `{first.name}` in what judges the policies, so that their figures would not compare: "
                f"{', '.join(differ[:6])}{' …' if len(differ) > 6 else ''}. Set these for all arms, in `set`.",
            )


def _what_judges(config: RunConfig) -> dict[str, JsonValue]:
    """Everything that decides on which prompts, how and by whom a policy is judged."""
    prompts = config.stage_config(config.prompt_stage)
    sampling = config.stage_config(StageName.SAMPLE_COMPLETIONS)
    source = config.prompts or config.dataset
    return {
        "run.seed": config.run.seed,
        **flat(None if source is None else source.model_dump(mode="json"), "prompts" if config.prompts else "dataset"),
        **flat(None if prompts is None else prompts.model_dump(mode="json"), str(config.prompt_stage)),
        **flat(None if sampling is None else sampling.model_dump(mode="json"), "evaluate_policy"),
        **flat(config.evaluate_policy.model_dump(mode="json", include={"judges", "confidence"}), "evaluate_policy"),
    }


def _rewards(config: RunConfig) -> str:
    """What the rewards are that judge the policy of this run."""
    rewards = (config.policy_on_rewards or config.evaluate_policy).rewards
    model = signatures(config).get("reward_model", "") if config.has_reward_model else ""
    return json.dumps([[term.model_dump(mode="json") for term in rewards], model])


def _tree(config: RunConfig) -> dict[str, JsonValue]:
    """The keys of the run that have an effect: of a stage without part, none."""
    idle = {stage.value for stage in StageName if not config.takes_part(stage)}
    found = flat({name: value for name, value in config.model_dump(mode="json").items() if name not in idle})
    return {key: value for key, value in found.items() if key not in _NAMES and not key.endswith(".stage")}
