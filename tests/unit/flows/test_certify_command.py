"""`rlhf certify` is a run up to the certificate, with somebody's reward model in the place of its own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub

from containers.contracts.names import StageName
from flows.certify import certified_run_name, certifying_run, model_settings
from tasks.champions.retraining import load_retraining
from tasks.config.errors import ConfigError, InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.run_files import write_run
from tests.unit.factories.weight_bytes import weight_bytes

MODEL = {
    "config.json": b"{}",
    "model.safetensors": weight_bytes(b"weights"),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{}",
}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with the models that are named here."""
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.delenv("PREFECT_API_URL", raising=False)
        for name in ("org/reward-8b", "org/m", "org/model"):
            fake.commit("models", name, MODEL)
        yield fake


def test_a_folder_and_a_hub_model_take_the_place_of_the_training(tmp_path: Path) -> None:
    folder = tmp_path / "it's a model"
    folder.mkdir()
    run = write_run(tmp_path)
    local = load_run_config(run, overrides=model_settings(str(folder))).config
    assert local.reward_model is not None
    assert local.reward_model.path == str(folder)
    hub = load_run_config(run, overrides=model_settings("org/reward-8b@main")).config
    assert hub.reward_model is not None
    assert (hub.reward_model.hub_id, hub.reward_model.revision) == ("org/reward-8b", "main")
    for config in (local, hub):
        assert StageName.TRAIN_REWARD_MODEL not in config.possible_stages
        assert StageName.EVALUATE_REWARD_MODEL in config.possible_stages


def test_a_certificate_needs_no_model_to_start_from_and_a_policy_does(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    certified = load_run_config(
        run, overrides=[*model_settings("org/m@main"), "run.until=evaluate_reward_model"]
    ).config
    assert certified.stages == (
        StageName.CHECK_SYSTEM,
        StageName.FILTER_DATASET,
        StageName.EVALUATE_REWARD_MODEL,
        StageName.WRITE_REPORT,
    )
    used = load_run_config(run, overrides=model_settings("org/m@main")).config
    assert StageName.BUILD_BASE_MODEL in used.stages


@pytest.mark.parametrize("model", ["nowhere", "org/model", "a/b/c@main", ""])
def test_what_is_neither_is_told_with_both_ways(model: str) -> None:
    with pytest.raises(InvalidConfigError, match="no folder here, and not a model on the hub"):
        model_settings(model)


@pytest.mark.parametrize("model", ["org/model@", "org/mo del@main", "org/model@../main"])
def test_a_hub_name_or_revision_that_is_none_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=r"--model\.(revision|hub_id): "):
        model_settings(model)


def test_a_model_that_the_hub_does_not_have_is_told_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"--model: model org/none@main does not exist on the hub, or it is private"):
        model_settings("org/none@main")


def test_an_adapter_is_certified_on_the_base_that_it_names_or_that_is_said(tmp_path: Path, hub: FakeHub) -> None:
    adapter, base = tmp_path / "adapter", tmp_path / "base"
    for folder, files in ((base, MODEL), (adapter, {"adapter_model.safetensors": weight_bytes(b"low rank")})):
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
    settings = {"peft_type": "LORA", "base_model_name_or_path": "org/m", "revision": "main"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    run = write_run(tmp_path)
    for said in (None, str(base)):
        config = load_run_config(run, overrides=model_settings(str(adapter), base=said)).config
        assert config.reward_model is not None and config.reward_model.path is not None
        place = Path(config.reward_model.path)
        assert (place / "adapter_model.safetensors").read_bytes() == weight_bytes(b"low rank")
        assert (place / "base" / "model.safetensors").read_bytes() == weight_bytes(b"weights")
    with pytest.raises(ConfigError, match=r"--model: --base: `nowhere` is no folder"):
        model_settings(str(adapter), base="nowhere")


def test_the_mistakes_of_the_run_are_told_before_the_model_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"run\.yaml has 1 mistake"):
        certifying_run("org/none@main", write_run(tmp_path, train_policy={"betta": 1}), settings=(), profile=None)


def test_every_model_has_a_run_of_its_own() -> None:
    names = [certified_run_name("demo", model) for model in ("outputs/a/merged", "outputs/b/merged", "org/m@main")]
    assert names == ["demo-certifies-outputs-a-merged", "demo-certifies-outputs-b-merged", "demo-certifies-org-m-main"]
    long = certified_run_name("demo", "x" * 100)
    assert len(long) == 63


def test_lengths_of_a_training_that_does_not_happen_refuse_nothing(tmp_path: Path) -> None:
    changed = {"train_reward_model": {"max_length": 2000}, "evaluate_reward_model": {"max_length": 1000}}
    with pytest.raises(InvalidConfigError, match=r"evaluate_reward_model\.max_length"):
        load_run_config(write_run(tmp_path, **changed))
    load_run_config(write_run(tmp_path, **changed), overrides=["reward_model={hub_id: org/m, revision: main}"])


def test_a_model_from_elsewhere_may_be_longer_than_the_one_that_is_built(tmp_path: Path) -> None:
    longer = ["evaluate_reward_model.max_length=9000"]
    with pytest.raises(InvalidConfigError, match="exceeds build_base_model"):
        load_run_config(write_run(tmp_path), overrides=longer)
    load_run_config(write_run(tmp_path), overrides=[*longer, "reward_model={hub_id: org/m, revision: main}"])


def test_the_training_that_is_replaced_is_no_stage_to_end_after(tmp_path: Path) -> None:
    wanted = [*model_settings("org/model@main"), "run.until=train_reward_model"]
    with pytest.raises(InvalidConfigError, match="no stage of this run"):
        load_run_config(write_run(tmp_path), overrides=wanted)


def test_a_retraining_with_a_reward_model_from_elsewhere_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, reward_model={"hub_id": "org/model", "revision": "main"})
    with pytest.raises(InvalidConfigError, match="a retraining trains its own reward model"):
        load_retraining(str(run))
