"""A person with five mistakes in a file reads five lines that say what to change, and does not start six times."""

from pathlib import Path

import pytest
import yaml

from tasks.config.errors import ConfigError, InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.run_files import PROFILE, run_tree, write_run, write_text


def message(path: Path, *, overrides: tuple[str, ...] = (), profile: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run_config(path, overrides=overrides, profile=profile)
    return str(caught.value)


def test_a_small_run_loads_with_every_default(tmp_path: Path) -> None:
    config = load_run_config(write_run(tmp_path)).config
    assert config.output_dir == Path("outputs/small")
    assert config.image == "rlhf-stage:cpu"
    assert config.train_sft is None
    assert [stage.value for stage in config.stages][:4] == [
        "check_system",
        "filter_dataset",
        "build_base_model",
        "train_reward_model",
    ]


def test_mistakes_are_listed_all_at_once_with_near_matches(tmp_path: Path) -> None:
    path = write_run(tmp_path, train_policy={"betta": 0.1, "num_generations": 0, "lora": {"r": 8}})
    assert message(path) == (
        f"{path} has 2 mistakes:\n"
        "  train_policy.num_generations: 0 is too few; wanted at least 1. "
        "Completions per prompt (K); at least 2, but for reinforce++ and ppo.\n"
        "  train_policy.betta: unknown key. Did you mean `beta`?"
    )


def test_a_key_in_the_wrong_section_is_shown_its_place(tmp_path: Path) -> None:
    path = write_run(
        tmp_path, train_reward_model={"learning_rate": 1e-5, "lora": {"r": 8}}, minimum_accuracy=0.5, filter_datset={}
    )
    said = message(path)
    assert (
        "train_reward_model.learning_rate: unknown key here. Did you mean `train_reward_model.optimizer.learning_rate`?"
    ) in said
    assert "  filter_datset: unknown key. Did you mean `filter_dataset`?" in said
    assert "  minimum_accuracy: unknown key here. Did you mean `" in said


def test_the_other_name_of_the_suites_is_answered_with_the_one_that_counts(tmp_path: Path) -> None:
    path = write_run(tmp_path, evaluate_reward_model={"pair_files": []})
    with pytest.raises(InvalidConfigError, match=r"pair_files: unknown key\. Did you mean `suites`\?"):
        load_run_config(path)


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("train_policy", "beta", "much", "train_policy.beta: `much` found, wanted a number. Weight of the KL"),
        ("train_policy", "beta", float("nan"), "train_policy.beta: nan found, wanted a finite number."),
        ("train_policy", "num_iterations", 1.5, "train_policy.num_iterations: 1.5 found, wanted a whole number."),
        ("train_policy", "lora", 3, "train_policy.lora: 3 found, wanted a section of keys."),
        (
            "train_policy",
            "algorithm",
            "rlo",
            "`rlo` is not one of `rloo`, `grpo`, `dr_grpo`, `dapo`, `gspo`, `cispo`, `sapo`, `reinforce++`, `ppo`. Did",
        ),
        ("filter_dataset", "code_rows", "kepe", "`kepe` is not one of `keep`, `drop`. Did you mean `keep`?"),
        ("filter_dataset", "languages", "english", "filter_dataset.languages: `english` found, wanted a list."),
        (
            "filter_dataset",
            "validation_fraction",
            5,
            "filter_dataset.validation_fraction: 5 is too large; wanted at most 1.",
        ),
        ("filter_dataset", "max_rows", None, None),
        ("run", "name", "My Run", "run.name: `My Run` does not look as wanted"),
        ("run", "seed", -1, "run.seed: -1 is too small; wanted at least 0."),
        ("evaluate_reward_model", "confidence", 1, "evaluate_reward_model.confidence: 1 is too large; wanted"),
        ("evaluate_policy", "confidence", 0, "evaluate_policy.confidence: 0 is too small; wanted"),
        ("runtime", "retry_wait_s", 301, "runtime.retry_wait_s: 301 is too large; wanted at most 300."),
        ("tracking", "mlflow_uri", "http://me:secret@host", "tracking.mlflow_uri: holds a user or password"),
        ("base_model", "path", "models/x", "base_model: both base_model and build_base_model are given."),
    ],
)
def test_each_kind_of_mistake_says_value_found_and_value_wanted(
    tmp_path: Path, section: str, key: str, value: object, expected: str | None
) -> None:
    tree = run_tree()
    content = tree.setdefault(section, {})
    assert isinstance(content, dict)
    content[key] = value
    path = write_text(tmp_path, yaml.safe_dump(tree))
    if expected is None:
        load_run_config(path)
        return
    said = message(path)
    assert expected in said
    assert "secret" not in said


def test_a_missing_section_says_what_belongs_there(tmp_path: Path) -> None:
    path = write_run(tmp_path, dataset=None, gpu_profile=None)
    said = message(path)
    assert "gpu_profile: is missing. A name in configs/gpu_profiles, or the profile itself." in said
    assert "dataset: neither dataset nor prompts is given." in said


def test_a_broken_section_does_not_hide_what_the_others_get_wrong_together(tmp_path: Path) -> None:
    path = write_run(
        tmp_path, run={"nam": "x"}, train_policy={"num_generations": 3, "global_batch_size": 8, "lora": {"r": 8}}
    )
    said = message(path)
    assert "run.name: is missing." in said
    assert "run.nam: unknown key. Did you mean `name`?" in said
    assert "train_policy.global_batch_size: global_batch_size 8 cannot be divided" in said


def test_a_missing_file_is_named_in_full_with_the_configurations_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs" / "runs").mkdir(parents=True)
    (tmp_path / "configs" / "runs" / "mine.yaml").touch()
    said = message(Path("configs/runs/mien.yaml"))
    assert str(tmp_path / "configs/runs/mien.yaml") in said
    assert "Configurations that exist: configs/runs/mine.yaml." in said


def test_a_folder_instead_of_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    assert "is a folder, not a file" in message(tmp_path)


def test_overrides_change_values_lists_and_whole_sections(tmp_path: Path) -> None:
    path = write_run(
        tmp_path, evaluate_reward_model={"suites": [{"name": "a", "path": "a.jsonl"}, {"name": "b", "path": "b"}]}
    )
    config = load_run_config(
        path,
        overrides=[
            "train_policy.optimizer.learning_rate=1e-5",
            "filter_dataset.languages=[english, german]",
            "train_policy.lora=null",
            "train_sft.max_length=64",
            "evaluate_reward_model.suites.1.minimum_accuracy=0.7",
            "run.name=other",
            "run.name=last",
        ],
    ).config
    assert config.train_policy.optimizer.learning_rate == 1e-5
    assert config.filter_dataset.languages == ("english", "german")
    assert config.train_policy.lora is None
    assert config.train_sft is not None and config.train_sft.max_length == 64
    assert config.evaluate_reward_model.suites[1].minimum_accuracy == 0.7
    assert config.run.name == "last"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "train_policy.betta=1",
            "train_policy.betta: unknown key. Did you mean `beta`? (from --set train_policy.betta=1)",
        ),
        (
            "train_policy.beta=much",
            "wanted a number. Weight of the KL to the reference policy; null: the algorithm's own, for rloo 0.05.",
        ),
        ("train_policy.beta", "--set train_policy.beta: wanted section.key=value, for example"),
        ("=1", "--set =1: wanted section.key=value"),
        ("a..b=1", "--set a..b=1: wanted section.key=value"),
        ("run.name.x=1", "--set run.name.x=1: run.name holds `small`, not a section, so `x` cannot be set below it."),
        ("run.tags=[a", "--set run.tags=[a is no valid YAML"),
        ("evaluate_reward_model.suites.4.path=x", "is a list of 0; wanted a number below that, not `4`"),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, override: str, expected: str) -> None:
    path = write_run(tmp_path, evaluate_reward_model={"suites": []})
    assert expected in message(path, overrides=(override,))


def test_an_override_does_not_change_the_other_users_of_an_alias(tmp_path: Path) -> None:
    text = yaml.safe_dump(run_tree(train_reward_model=None, train_policy=None))
    path = write_text(tmp_path, text + "train_reward_model: {lora: &l {r: 8}}\ntrain_policy: {lora: *l}\n")
    config = load_run_config(path, overrides=["train_policy.lora.r=4"]).config
    assert config.train_policy.lora is not None and config.train_policy.lora.r == 4
    assert config.train_reward_model.lora is not None and config.train_reward_model.lora.r == 8


def test_a_partial_section_keeps_the_defaults_of_its_own_stage(tmp_path: Path) -> None:
    path = write_run(
        tmp_path, train_policy={"optimizer": {"scheduler": "linear"}, "schedule": {"save_steps": 20}, "lora": {"r": 8}}
    )
    policy = load_run_config(path).config.train_policy
    assert policy.optimizer.learning_rate == 1e-6
    assert policy.schedule.max_steps == 100


def test_naming_epochs_replaces_a_default_number_of_steps(tmp_path: Path) -> None:
    path = write_run(tmp_path, train_policy={"schedule": {"num_epochs": 2}, "lora": {"r": 8}})
    assert load_run_config(path).config.train_policy.schedule.max_steps is None


def test_a_profile_on_the_command_line_wins_and_its_keys_can_be_changed(tmp_path: Path) -> None:
    path = write_run(tmp_path, train_policy={"lora": {"r": 8}})
    loaded = load_run_config(path, profile="4x48gb", overrides=["gpu_profile.shm_size_gib=64"])
    assert loaded.config.gpu_profile.name == "4x48gb"
    assert loaded.config.gpu_profile.shm_size_gib == 64
    assert loaded.config.image == "rlhf-stage:gpu"


def test_an_unknown_profile_is_one_mistake_with_a_near_match(tmp_path: Path) -> None:
    said = message(write_run(tmp_path), profile="4x48g")
    assert "1 mistake:" in said
    own = "Or name your own YAML file: docs/hardware.md."
    assert f"gpu_profile: `4x48g`: no such profile. Did you mean `4x48gb`? {own}" in said
    assert "1 mistake:" in message(write_run(tmp_path), profile="4x48g", overrides=("gpu_profile.num_threads=2",))


def test_a_mistake_in_a_profile_file_names_that_file(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(yaml.safe_dump({**PROFILE, "nccl": {"p2p_levl": "NVL"}, "num_gpu": 4}))
    said = message(write_run(tmp_path), profile=str(profile))
    assert f"gpu_profile: {profile}: nccl.p2p_levl: unknown key. Did you mean `p2p_level`?" in said
    assert f"gpu_profile: {profile}: num_gpu: unknown key. Did you mean `num_gpus`?" in said
    overridden = message(write_run(tmp_path), profile=str(profile), overrides=("gpu_profile.num_gpu=2",))
    assert "gpu_profile.num_gpu: unknown key. Did you mean `num_gpus`? (from --set gpu_profile.num_gpu=2)" in overridden


def test_a_mistake_in_a_profile_can_be_mended_on_the_command_line(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(yaml.safe_dump({**PROFILE, "num_threads": 0}))
    path = write_run(tmp_path)
    assert f"gpu_profile: {profile}: num_threads: 0 is too few" in message(path, profile=str(profile))
    loaded = load_run_config(path, profile=str(profile), overrides=["gpu_profile.num_threads=2"])
    assert loaded.config.gpu_profile.num_threads == 2


def test_the_effective_configuration_loads_to_the_same_run(tmp_path: Path) -> None:
    first = load_run_config(
        write_run(tmp_path, runtime={"timeout_s": {"default": 60}}), overrides=["train_policy.beta=1e-3"], profile="cpu"
    )
    again = load_run_config(write_text(tmp_path, first.yaml_text))
    assert again.config == first.config
    assert "stage:" not in first.yaml_text


def test_a_stage_without_a_limit_of_its_own_gets_the_default(tmp_path: Path) -> None:
    loaded = load_run_config(write_run(tmp_path, runtime={"timeout_s": {"default": 60, "train_policy": 600}}))
    limits = {stage.value: limit for stage, limit in loaded.config.timeouts_s.items()}
    assert limits["train_policy"] == 600
    assert limits["filter_dataset"] == 60


def test_the_mistakes_are_there_for_programs_too(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_run_config(write_run(tmp_path, dataset={"trian": "x"}))
    assert [mistake.key for mistake in caught.value.mistakes] == ["dataset.train", "dataset.trian"]
