"""Nobody reads models to find a key: the page and `rlhf keys` are made from them, and say something about each."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from containers.contracts.hardware import GpuProfile
from flows.cli.keys import keys_page
from flows.cli.main import main
from tasks.config.errors import keys_of
from tasks.config.keys import config_sections
from tasks.config.run import RunConfig

_KEYS = {key.path: key for section in config_sections() for key in section.keys}
_PATH = re.compile(r"^  (\S+): ", re.MULTILINE)


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], str]:
    """The paths that `rlhf keys` prints, and all of its text."""
    assert main(["keys", *arguments]) == 0
    text = capsys.readouterr().out
    return _PATH.findall(text), text


def test_the_page_is_what_the_code_says(project: Path) -> None:
    told = "docs/configuration.md is not what the models say: run `rlhf keys --write docs/configuration.md`"
    assert (project / "docs" / "configuration.md").read_text(encoding="utf-8") == keys_page(), told


def test_writing_the_page_names_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.md"
    assert main(["keys", "--write", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_text(encoding="utf-8") == keys_page()


def test_every_key_has_a_description() -> None:
    assert [path for path, key in _KEYS.items() if len(key.text) < 3] == []


def test_a_page_that_cannot_be_written_ends_with_2_and_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gone" / "page.md"
    assert main(["keys", "--write", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"{path} cannot be written: No such file or directory. Name a file")


def test_every_section_and_every_key_of_a_profile_is_listed() -> None:
    assert {section.path for section in config_sections()} > {*RunConfig.model_fields} - {"tokenizer_file"}
    profile = {path.split(".")[1] for path in _KEYS if path.startswith("gpu_profile.")}
    assert profile == set(keys_of(GpuProfile))


@pytest.mark.parametrize(
    ("path", "kind", "default"),
    [
        ("run.name", "text", "required"),
        ("run.seed", "int in [0, 2^32)", "0"),
        ("run.store_dir", "path, or null", "null"),
        ("run.until", "name of a stage, or null", "null"),
        ("gpu_profile", "name of a profile, or section", "required"),
        ("gpu_profile.environment", "map of names to text", "{}"),
        ("gpu_profile.num_threads", "int in [1, 256]", "1"),
        ("filter_dataset.languages", "list of text", "[english]"),
        ("filter_dataset.max_malformed_fraction", "float in [0, 1]", "0.01"),
        ("dataset.mixture", "list of sections", "[]"),
        ("dataset.mixture.N.weight", "float > 0, or null", "null"),
        ("train_reward_model.trainable", "one of lora, full, head", "lora"),
        ("train_reward_model.gradient_checkpointing", "true or false, or int in [2, 1000]", "true"),
        ("train_reward_model.lora", "section, or null", "its defaults"),
        ("train_policy.algorithm", "one of rloo, grpo, dr_grpo, dapo, gspo, cispo, sapo, reinforce++, ppo", "rloo"),
        ("train_policy.parts.overlong_fraction", "float in [0, 1], or null", "null"),
        ("evaluate_reward_model.batch_tokens", "int ≥ 1, or null", "null"),
        ("evaluate_reward_model.suites.N.minimum_accuracy", "float in [0, 1], or null", "null"),
        ("retrain.regression_budgets", "map of names to float in [0, 1]", "{}"),
        ("gates.policy.waive.by", "text", "required"),
        ("evaluate_reward_model.confidence", "float in (0, 1)", "0.95"),
        ("evaluate_policy.confidence", "float in (0, 1)", "0.95"),
    ],
)
def test_type_and_default_are_told_in_words(path: str, kind: str, default: str) -> None:
    assert (_KEYS[path].kind, _KEYS[path].default) == (kind, default)


def test_a_default_is_that_of_its_own_section() -> None:
    rates = [_KEYS[f"{stage}.optimizer.learning_rate"].default for stage in ("train_reward_model", "train_policy")]
    assert rates == ["1e-5", "1e-6"]
    assert _KEYS["train_sft.schedule.max_steps"].default == "null"
    assert _KEYS["train_policy.schedule.max_steps"].default == "100"


def test_what_only_the_run_fills_in_has_no_keys_below() -> None:
    assert "filter_dataset.suites" in _KEYS
    assert not any(path.startswith("filter_dataset.suites.") for path in _KEYS)
    assert not any(path.endswith(".stage") for path in _KEYS)


def test_without_a_word_every_key_is_printed_in_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    paths, text = _printed(capsys)
    assert list(dict.fromkeys(paths)) == list(_KEYS)  # types of rewards share names of keys
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_section_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    paths, text = _printed(capsys, "train_reward_model")
    assert paths == [path for path in _KEYS if path.startswith("train_reward_model.")]
    assert text.startswith("train_reward_model: Bradley-Terry reward model")
    assert "  train_reward_model.use_cls: true or false; default false\n      End each conversation with" in text


def test_a_section_inside_a_section_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    section = "train_policy.lora"
    keys = ("r", "alpha", "targets", "exclude", "use_rslora", "dropout")
    assert _printed(capsys, section)[0] == [section, *(f"{section}.{key}" for key in keys)]


def test_a_list_of_sections_is_printed_with_the_keys_of_its_items(capsys: pytest.CaptureFixture[str]) -> None:
    listed, items = (_printed(capsys, f"dataset.mixture{ending}")[0] for ending in ("", ".N"))
    assert listed == ["dataset.mixture", *items]
    assert "dataset.mixture.N.weight" in items


def test_a_part_of_a_key_finds_it_in_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    stages = ("train_sft", "train_reward_model", "train_dpo", "train_policy")
    expected = [
        f"{stage}.optimizer.{name}" for stage in stages for name in ("learning_rate", "minimum_learning_rate_fraction")
    ]
    assert _printed(capsys, "Learning_Rate")[0] == [*expected[:-2], "train_policy.critic.learning_rate", *expected[-2:]]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("train_polcy", "Did you mean `train_policy`?"),
        ("lerning_rate", "Did you mean `learning_rate`?"),
        ("train_policy.betta", "Did you mean `train_policy.beta`?"),
        ("zzz", "Known: `answer_sets`, `base_model`, `build_base_model`, `com"),
    ],
)
def test_an_unknown_word_ends_with_2_and_a_near_match(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", word]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"`{word}`: no section has this name, and no key contains it. {hint}")


@pytest.mark.waits
def test_it_loads_nothing_heavy() -> None:
    code = "import flows.cli.keys, sys; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & {"huggingface_hub", "prefect", "mlflow", "docker", "rich", "numpy", "pyarrow"}
