"""A form in Prefect is the run configuration seen through a keyhole: same bounds, same words, nothing of its own."""

import shlex
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from flows import served
from flows.cli.main import build_parser
from flows.forms.pipeline import LEFT_EMPTY, TO_BE_CHOSEN, SetsKey, load_form, overrides_by_field
from flows.serving.deployments import served_flows
from tasks.config.errors import ConfigError
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig

FORM = served.rlhf_pipeline.fn
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


@pytest.fixture(autouse=True)
def _in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def keys(form: Any) -> dict[str, SetsKey]:
    """Parameter → what it sets."""
    hints = get_type_hints(form, include_extras=True)
    return {
        name: item
        for name, hint in hints.items()
        for item in getattr(hint, "__metadata__", ())
        if isinstance(item, SetsKey)
    }


@cache
def _whole_schema() -> dict[str, Any]:
    return RunConfig.model_json_schema()


def in_run_config(key: str) -> dict[str, Any]:
    """The JSON schema of a key, walked by hand through the schema of the whole configuration."""
    whole = _whole_schema()
    place: dict[str, Any] = whole
    for part in key.split("."):
        place = _real(place, whole)["properties"][part]
    return _real(place, whole)


def _real(place: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in place.get("anyOf", ()) if kind.get("type") != "null"]
    place = kinds[0] if kinds else place
    return whole["$defs"][place["$ref"].rpartition("/")[2]] if "$ref" in place else place


@pytest.mark.parametrize("flow", served_flows(), ids=lambda flow: flow.name)
def test_every_field_has_the_bounds_and_the_type_of_its_key(flow: Any) -> None:
    properties = parameter_schema(flow).properties
    checked = 0
    for name, sets in keys(flow.fn).items():
        own = in_run_config(sets.key)
        assert {bound: properties[name].get(bound) for bound in BOUNDS} == {bound: own.get(bound) for bound in BOUNDS}
        assert own.get("pattern") in (None, properties[name].get("pattern"))
        assert sets.choices or properties[name]["type"] == own["type"]
        assert sets.choices is None or set(properties[name]["enum"]) == set(sets.choices())
        checked += 1
    assert checked or flow.name == "rlhf-retrain"


@pytest.mark.parametrize("flow", served_flows(), ids=lambda flow: flow.name)
def test_every_field_says_what_it_is_and_may_be_left_empty(flow: Any) -> None:
    schema = parameter_schema(flow)
    assert schema.required == ["start_from"]
    for name, field in schema.properties.items():
        assert len(field.get("description", "")) > 20, name
        assert "default" not in field, f"the page would send the default of {name}, and the server refuse it"
        assert "anyOf" not in field, f"{name} would ask for a type first"


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"start_from": "demo", "reward_model_learning_rate": 0}, "0 is less than or equal to the minimum of 0"),
        ({"start_from": "demo", "minimum_accuracy": 65}, "65 is greater than the maximum of 1"),
        ({"start_from": "demo", "sample_limit": 2.5}, "2.5 is not valid under any of the given schemas"),
        ({"start_from": "demo", "gpu_profile": "3x48gb"}, "'3x48gb' is not one of"),
        ({"start_from": "demo", "save_as": "My Run"}, "'My Run' does not match"),
        ({"start_from": "no-such-run"}, "'no-such-run' is not one of"),
        ({}, "'start_from' is a required property"),
    ],
)
def test_the_server_refuses_what_the_configuration_would_refuse(values: dict[str, Any], refused: str) -> None:
    schema = parameter_schema(FORM).model_dump(exclude_unset=True)
    assert any(refused in error.message for error in validate(values, schema))


def test_the_server_takes_fields_that_are_left_empty_or_emptied_again() -> None:
    schema = parameter_schema(FORM).model_dump(exclude_unset=True)
    assert validate({"start_from": "demo"}, schema) == []
    assert validate({"start_from": "demo", "seed": None, "reward_model_epochs": None}, schema) == []


def test_what_is_left_empty_overrides_nothing() -> None:
    empty = {"start_from": "demo", "seed": LEFT_EMPTY, "save_as": "", "until": None, "more_settings": [" "]}
    loaded, command = load_form(FORM, empty)
    assert command == "rlhf run -c configs/runs/demo.yaml"
    assert loaded.config == load_run_config("configs/runs/demo.yaml").config


def test_the_command_repeats_the_run_of_the_form() -> None:
    filled = {
        "start_from": "demo",
        "save_as": "demo-again",
        "sample_limit": 500,
        "reward_model_learning_rate": 1e-05,
        "reward_model_epochs": 2,
        "minimum_accuracy": 0.8,
        "until": "evaluate_reward_model",
        "more_settings": ["train_sft.max_length=48", "write_report.title='A run: with words'"],
    }
    loaded, command = load_form(FORM, filled)
    config = loaded.config
    assert config.train_reward_model.schedule.max_steps is None, "the demo's number of steps would have won"
    assert config.train_reward_model.schedule.num_epochs == 2
    assert config.train_reward_model.optimizer.learning_rate == 1e-05
    assert (config.train_sft and config.train_sft.max_length, config.filter_dataset.max_rows) == (48, 500)

    words = shlex.split(command)[1:]
    parsed = build_parser(words).parse_args(words)
    assert load_run_config(parsed.config, overrides=parsed.overrides).config == config


def test_a_repeat_does_not_begin_again() -> None:
    loaded, command = load_form(FORM, {"start_from": "demo", "again_from": "train_policy"})
    assert loaded.config.run.again_from == "train_policy"
    assert "again_from" not in command


def test_another_model_takes_the_place_of_the_one_that_was_built() -> None:
    filled = {"start_from": "demo", "base_model": "Qwen/Qwen3-0.6B", "base_model_revision": "main"}
    base_model = load_form(FORM, {**filled, "more_settings": ["train_sft=null"]})[0].config.base_model
    assert base_model is not None
    assert (base_model.hub_id, base_model.revision) == ("Qwen/Qwen3-0.6B", "main")


def test_another_prompt_set_and_algorithm_take_the_place_of_the_run_configurations() -> None:
    filled = {
        "start_from": "grpo-polaris",
        "prompts": "open-r1/DAPO-Math-17k-Processed",
        "prompts_revision": "main",
        "prompts_file": "en/train.parquet",
        "algorithm": "dr_grpo",
        "num_generations": 4,
        "beta": 0.0,
    }
    config = load_form(FORM, filled)[0].config
    assert config.prompts is not None
    assert (config.prompts.hub_id, config.prompts.train) == ("open-r1/DAPO-Math-17k-Processed", "en/train.parquet")
    assert (config.train_policy.algorithm, config.train_policy.num_generations) == ("dr_grpo", 4)
    assert config.train_policy.method.beta == 0


def test_lines_of_rewards_replace_those_of_the_run() -> None:
    lines = ["math", "", "{type: length, target: [20, 200], weight: 0.1}"]
    loaded, command = load_form(FORM, {"start_from": "grpo-polaris", "rewards": lines})
    found = loaded.config.train_policy.rewards
    assert [(term.type, term.weight) for term in found] == [("math", 1.0), ("length", 0.1)]
    assert """'train_policy.rewards=[{"type": "math"}, {"type": "length",""" in command
    unchanged, _ = load_form(FORM, {"start_from": "grpo-polaris", "rewards": ["", " "]})
    assert unchanged.config.train_policy.rewards != found


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("maths", "the field rewards"),
        ("{type: length, target: [20, 200], wieght: 0.1}", "train_policy.rewards.0.wieght"),
        ("[math, exact]", "wanted a type such as `math`"),
        ("{type: math", "rewards, line 1"),
        ("{type: python, name: mine, file: mine.py}", "train_policy.rewards.0.file"),
        ("{type: reward_model, others: [{path: /etc, certificate: x}]}", "/etc"),
    ],
)
def test_a_wrong_line_of_rewards_is_refused(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_form(FORM, {"start_from": "grpo-polaris", "rewards": [line]})
    assert said in str(error.value)


def test_a_text_that_yaml_reads_as_something_else_stays_text() -> None:
    assert overrides_by_field(FORM, {"save_as": "123", "base_model_revision": "null"}) == {
        "save_as": ['run.name="123"'],
        "base_model_revision": ['base_model.revision="null"'],
        "more_settings": [],
    }


def test_further_settings_win() -> None:
    loaded, _ = load_form(FORM, {"start_from": "demo", "seed": 3, "more_settings": ["run.seed=4"]})
    assert loaded.config.run.seed == 4


def test_all_mistakes_are_told_at_once_and_with_what_to_do() -> None:
    wrong = {"start_from": "demo", "base_model": "Qwen/Qwen3-8B", "more_settings": ["train_policy.betta=1", "nonsense"]}
    with pytest.raises(ConfigError) as refused:
        load_form(FORM, wrong)
    text = str(refused.value)
    assert "needs a `revision`" in text
    assert "Did you mean `beta`? (from more_settings: train_policy.betta=1)" in text
    assert "more_settings: nonsense: wanted section.key=value" in text


def test_a_mistake_names_the_field_that_it_was_made_in_and_no_option_of_a_command() -> None:
    with pytest.raises(ConfigError) as refused:
        load_form(FORM, {"start_from": "demo", "minimum_accuracy": 65, "more_settings": ["nonsense"]})
    assert "65" in str(refused.value)
    assert "(from the field minimum_accuracy)" in str(refused.value)
    assert "--set" not in str(refused.value)


def test_a_person_asked_for_in_the_form_takes_the_place_of_a_waiver() -> None:
    waived = ["gates.reward_model.waive={by: Ada, reason: a trial}"]
    with pytest.raises(ConfigError, match="Keep one of the two"):
        load_form(FORM, {"start_from": "demo", "approval": "required", "more_settings": waived})
    loaded, command = load_form(FORM, {"start_from": "demo", "approval": "required", "minimum_reward_gain": 0.1})
    gates = loaded.config.gates
    assert (gates.reward_model.approval, gates.reward_model.waive) == ("required", None)
    assert gates.policy.minimum_reward_gain == 0.1
    assert "--set gates.reward_model.waive=null" in command


def test_another_dataset_comes_with_files_of_its_own() -> None:
    filled = {"start_from": "demo", "dataset": "org/pairs", "dataset_revision": "main", "train_file": "train.jsonl"}
    dataset = load_form(FORM, filled)[0].config.dataset
    assert (dataset.hub_id, dataset.train, dataset.validation) == ("org/pairs", "train.jsonl", None)


@pytest.mark.parametrize("values", [{}, {"start_from": TO_BE_CHOSEN}, {"start_from": ""}])
def test_a_schedule_without_a_run_to_start_from_is_told_where_to_fill_it_in(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)start_from: no run configuration was chosen.*Overrides.*`demo`, "):
        load_form(FORM, values)


def test_a_run_configuration_that_has_gone_is_named_with_those_that_are_there() -> None:
    with pytest.raises(ConfigError, match=r"`dema` is no run configuration. Did you mean `demo`\?"):
        load_form(FORM, {"start_from": "dema"})
