"""The form of `certify` judges any reward model by a run, in a run of its own, or says why nothing was started."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from containers.contracts.names import StageName
from flows import served
from flows.cli.main import build_parser
from flows.forms.folders import ALLOWED_VARIABLE
from flows.serving.certify_form import load_certify_form
from tasks.config.errors import ConfigError, InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.weight_bytes import weight_bytes

FORM = served.certify.fn
UNTIL = "run.until=evaluate_reward_model"
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": weight_bytes(b"weights"),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}


@pytest.fixture(autouse=True)
def _in_the_project(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv(ALLOWED_VARIABLE, str(tmp_path))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        yield fake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a model."""
    model = tmp_path / "its model"
    model.mkdir()
    for name, data in FILES.items():
        (model / name).write_bytes(data)
    return model


def test_the_form_asks_for_a_model_in_words_and_takes_it_empty() -> None:
    schema = parameter_schema(FORM)
    field = schema.properties["reward_model"]
    assert field["type"] == "string"
    assert "org/name@revision" in field["description"] and "Empty:" in field["description"]
    whole = schema.model_dump(exclude_unset=True)
    assert validate({"start_from": "demo"}, whole) == []
    assert validate({"start_from": "demo", "reward_model": "org/m@main"}, whole) == []


def test_a_folder_takes_the_place_of_the_training_and_the_suites_are_the_runs(folder: Path) -> None:
    values = {"start_from": "demo", "reward_model": f" {folder} ", "minimum_accuracy": 0.7}
    loaded, command = load_certify_form(FORM, values, fixed=(UNTIL,))
    config, own = loaded.config, load_run_config("configs/runs/demo.yaml").config
    assert config.reward_model is not None and config.reward_model.path == str(folder)
    assert config.stages == (
        StageName.CHECK_SYSTEM,
        StageName.FILTER_DATASET,
        StageName.EVALUATE_REWARD_MODEL,
        StageName.WRITE_REPORT,
    )
    assert config.evaluate_reward_model.suites == own.evaluate_reward_model.suites
    assert config.gates.reward_model.minimum_accuracy == 0.7
    assert config.run.name.startswith("demo-certifies-") and config.run.name.endswith("-its-model")
    words = shlex.split(command)[1:]
    parsed = build_parser(words).parse_args(words)
    assert load_run_config(parsed.config, overrides=parsed.overrides).config == config


def test_a_model_on_the_hub_is_named_with_its_revision(hub: FakeHub) -> None:
    hub.commit("models", "org/reward-8b", FILES)
    loaded, _ = load_certify_form(FORM, {"start_from": "demo", "reward_model": "org/reward-8b@main"}, fixed=(UNTIL,))
    source = loaded.config.reward_model
    assert source is not None and (source.hub_id, source.revision) == ("org/reward-8b", "main")
    assert loaded.config.run.name == "demo-certifies-org-reward-8b-main"


@pytest.mark.parametrize("values", [{"save_as": "mine"}, {"more_settings": ["run.name=mine"]}])
def test_a_name_that_was_given_stays(folder: Path, values: dict[str, object]) -> None:
    loaded, _ = load_certify_form(FORM, {"start_from": "demo", "reward_model": str(folder), **values}, fixed=(UNTIL,))
    assert loaded.config.run.name == "mine"


def test_without_a_model_the_runs_own_is_judged() -> None:
    loaded, command = load_certify_form(FORM, {"start_from": "demo", "reward_model": ""}, fixed=(UNTIL,))
    assert loaded.config.reward_model is None
    assert loaded.config.run.name == "demo"
    assert StageName.TRAIN_REWARD_MODEL in loaded.config.stages
    assert "reward_model" not in command.replace("evaluate_reward_model", "")


@pytest.mark.parametrize("model", ["nowhere", "org/model", "a/b/c@main"])
def test_what_is_no_model_is_refused_in_the_words_of_the_form(model: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        load_certify_form(FORM, {"start_from": "demo", "reward_model": model}, fixed=(UNTIL,))
    text = str(refused.value)
    assert text.startswith("The form has 1 mistake:\n  reward_model: ")
    assert "no folder here, and not a model on the hub" in text
    assert "--model" not in text


def test_mistakes_of_the_run_are_told_before_a_hub_is_asked(hub: FakeHub) -> None:
    values = {"start_from": "demo", "reward_model": "org/m@main", "more_settings": ["train_policy.betta=1"]}
    with pytest.raises(ConfigError, match="Did you mean `beta`"):
        load_certify_form(FORM, values, fixed=(UNTIL,))
    assert hub.requests == []


def test_lengths_of_the_training_that_is_replaced_refuse_nothing(folder: Path) -> None:
    shorter = {"start_from": "demo", "more_settings": ["evaluate_reward_model.max_length=48"]}
    with pytest.raises(ConfigError, match="is below train_reward_model"):
        load_certify_form(FORM, shorter, fixed=(UNTIL,))
    loaded, _ = load_certify_form(FORM, {**shorter, "reward_model": str(folder)}, fixed=(UNTIL,))
    assert loaded.config.evaluate_reward_model.max_length == 48


def test_a_model_that_the_hub_has_not_is_told_as_such(hub: FakeHub) -> None:
    with pytest.raises(ConfigError, match=r"reward_model: .*org/gone@main does not exist on the hub"):
        load_certify_form(FORM, {"start_from": "demo", "reward_model": "org/gone@main"}, fixed=(UNTIL,))
