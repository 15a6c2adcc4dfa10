"""Every number that a person can write ends on both sides: one beyond 64 bits would spoil Prefect's lists for all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import validate

from containers.contracts.configs.score_file import ScoreFileConfig
from containers.contracts.hardware import GpuProfile
from flows.serving.deployments import make_deployments, served_flows
from tasks.config.errors import ConfigError
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig

FORMS = {
    item.name: item._parameter_openapi_schema.model_dump(exclude_unset=True)
    for item in make_deployments(served_flows())
}
WHOLE = {model.__name__: model.model_json_schema() for model in (RunConfig, GpuProfile, ScoreFileConfig)}
LARGEST = 2**63


def numbers(place: Any, whole: dict[str, Any], key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and schema of every number below a place of a schema."""
    if "$ref" in place:
        place = whole["$defs"][place["$ref"].rpartition("/")[2]]
    if place.get("type") in ("integer", "number"):
        yield key, place
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for part in place.get(name, ()):
            yield from numbers(part, whole, key)
    for name in ("items", "additionalProperties"):
        if isinstance(place.get(name), dict):
            yield from numbers(place[name], whole, f"{key}[]")
    for name, part in place.get("properties", {}).items():
        yield from numbers(part, whole, f"{key}.{name}")


@pytest.mark.parametrize("name", [*WHOLE, *FORMS])
def test_no_number_is_without_an_end(name: str) -> None:
    whole = {**WHOLE, **FORMS}[name]
    found = list(numbers(whole, whole))
    assert found or name in ("rlhf-retrain", "rlhf-arms")
    for key, schema in found:
        least = schema.get("minimum", schema.get("exclusiveMinimum"))
        most = schema.get("maximum", schema.get("exclusiveMaximum"))
        assert least is not None and least > -LARGEST, f"{key} has no minimum"
        assert most is not None and most < LARGEST, f"{key} has no maximum"


@pytest.mark.parametrize("deployment", FORMS)
def test_the_server_refuses_text_that_it_could_not_show_and_fields_that_are_not_there(deployment: str) -> None:
    schema = FORMS[deployment]
    fields = schema["properties"]
    texts = [name for name, field in fields.items() if field.get("type") == "string"]
    for name in texts:
        for text in ("a\ud800b", "a\0b", "a\x1bb", "a" * 2_000_000):
            assert validate({name: text}, schema, ignore_required=True), f"{name} takes {text[:4]!r}"
    for line in ("a\ud800b", "run.name=a\0b", "a" * 2_000_000):
        assert validate({"more_settings": [line]}, schema, ignore_required=True)
    assert validate({"more_settings": ["run.seed=1"] * 101}, schema, ignore_required=True)
    assert not validate({"more_settings": ["run.tags=[größe, 模型, 🙂]"]}, schema, ignore_required=True)
    assert validate({"sample_limitt": 5}, schema, ignore_required=True)


def test_a_number_among_variables_is_text_before_a_server_sees_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    setting = f"gpu_profile.environment={{NCCL_BUFFSIZE: {2**64}}}"
    loaded = load_run_config("configs/runs/demo.yaml", overrides=[setting])
    assert dict(loaded.config.gpu_profile.environment)["NCCL_BUFFSIZE"] == str(2**64)


@pytest.mark.parametrize(
    "setting",
    [
        f"filter_dataset.max_rows={2**64}",
        f"run.seed={'9' * 4000}",
        f"run.seed={'9' * 5000}",
        f"gates.policy.minimum_reward_gain=-{'9' * 400}",
        "gates.policy.minimum_reward_gain=1e400",
        f"gpu_profile.environment={{NCCL_ALGO: [{2**64}]}}",
        f"filter_dataset.max_rows=[{2**64}]",
        f"retrain.regression_budgets={{a: {2**64}}}",
        r'run.tags=["a\ud800b"]',
        r'run.output_dir="a\0b"',
        f"tracking.mlflow_port={2**64}",
    ],
)
def test_no_setting_brings_in_what_the_server_could_not_show(
    setting: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(ConfigError):
        load_run_config("configs/runs/demo.yaml", overrides=[setting])
