"""A further reward model gives rewards only with a certificate of its own that passes the run's gate."""

import json
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.certificate import Certificate
from containers.contracts.configs.parts.rewards import FurtherRewardModel
from containers.contracts.digests import artifact_digest, file_entries
from containers.contracts.identity import SINGLE_BATCH, stage_identity
from containers.contracts.manifest import Manifest
from containers.contracts.names import CERTIFICATE_FILE, MANIFEST_FILE, StageName
from tasks.checks.certificates import certificate_finding
from tasks.config.errors import InvalidConfigError
from tasks.config.gates import RewardModelGate, Waiver
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.config.sources import model_source
from tasks.pipeline.further_reward_models import further_certificate_inputs, further_model_inputs
from tasks.pipeline.reward_models import named_reward_model
from tests.unit.factories.report.certificate_factory import certificate, suite
from tests.unit.factories.run_files import write_run
from tests.unit.factories.weight_bytes import weight_bytes

FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": weight_bytes(b"weights" * 100),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}


def model_in(folder: Path, *, digest: str | None = None, accuracy: float = 0.9) -> FurtherRewardModel:
    """A reward model with a certificate beside it, about it unless `digest` says otherwise."""
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    model = FurtherRewardModel(path=str(folder), certificate=str(folder.parent / f"{folder.name}-certificate"))
    own = digest or named_reward_model(model_source(model)).digest
    made = certificate([suite("test", accuracy, num_pairs=1000)])
    made = made.model_copy(update={"model": made.model.model_copy(update={"digest": own})})
    Path(model.certificate).mkdir()
    (Path(model.certificate) / CERTIFICATE_FILE).write_text(made.model_dump_json())
    return model


def run_with(tmp_path: Path, *models: FurtherRewardModel, **policy: Any) -> RunConfig:
    tmp_path.mkdir(exist_ok=True)
    others = [model.model_dump(exclude_none=True) for model in models]
    term = {"type": "reward_model", "normalise": "validation", "others": others}
    tree = {"lora": {"r": 8}, "schedule": {"max_steps": 30}, "rewards": [term], **policy}
    return load_run_config(write_run(tmp_path, train_policy=tree)).config


def test_each_is_an_input_of_the_training_and_its_place_changes_no_key(tmp_path: Path) -> None:
    models = [model_in(tmp_path / name) for name in ("one", "two")]
    run = run_with(tmp_path, *models)
    found = further_model_inputs(run, True)
    assert [item.name for item in found] == ["reward_model_2", "reward_model_3"]
    certificates = further_certificate_inputs(run)
    assert [item.name for item in certificates] == ["certificate_2", "certificate_3"]
    assert all((Path(item.path) / CERTIFICATE_FILE).is_file() for item in certificates)

    moved = [model_in(tmp_path / "elsewhere" / name) for name in ("one", "two")]
    identities = []
    for one in (run, run_with(tmp_path / "b", *moved)):
        config = one.stage_config(StageName.TRAIN_POLICY)
        assert config is not None
        inputs = (*further_model_inputs(one, True), *further_certificate_inputs(one))
        identities.append(
            stage_identity(config, seed=0, inputs=inputs, code_digest="c", profile=one.gpu_profile, batch=SINGLE_BATCH)
        )
    assert identities[0] == identities[1]
    assert "certificate_2" not in json.dumps(identities[0]["inputs"])


def test_a_model_that_passes_the_gate_is_taken_and_one_that_misses_it_is_refused_with_the_rule(tmp_path: Path) -> None:
    gate = RewardModelGate()
    good = certificate_finding(model_in(tmp_path / "good"), gate, number=2)
    assert (good.verdict, good.found.startswith("passes")) == ("ok", True)
    poor = model_in(tmp_path / "poor", accuracy=0.5)
    found = certificate_finding(poor, gate, number=2)
    assert found.verdict == "failure" and "accuracy on test 50.0 %" in found.found
    waived = gate.model_copy(update={"waive": Waiver(by="Ada", reason="a trial")})
    assert certificate_finding(poor, waived, number=2).verdict == "warning"


def test_the_certificate_of_another_model_or_none_is_refused_before_the_run(tmp_path: Path) -> None:
    other = certificate_finding(model_in(tmp_path / "other", digest="sha256:9"), RewardModelGate(), number=2)
    assert other.verdict == "failure" and "is about another reward model" in other.found
    lost = model_in(tmp_path / "lost")
    (Path(lost.certificate) / CERTIFICATE_FILE).unlink()
    assert "no certificate.json" in certificate_finding(lost, RewardModelGate(), number=2).found


def test_the_certificate_of_a_run_names_the_artifact_that_the_model_lies_in(tmp_path: Path) -> None:
    artifact = tmp_path / "train_reward_model"
    model = model_in(artifact / "merged")
    manifest = Manifest(
        stage=StageName.TRAIN_REWARD_MODEL,
        key="k",
        files=file_entries(artifact),
        metrics=(),
        lineage=(),
        created_at="2026-11-21T11:30:00+00:00",
    )
    (artifact / MANIFEST_FILE).write_text(manifest.model_dump_json())
    file = Path(model.certificate) / CERTIFICATE_FILE
    read = Certificate.model_validate_json(file.read_bytes())
    of_artifact = read.model.model_copy(update={"digest": artifact_digest(manifest)})
    file.write_text(read.model_copy(update={"model": of_artifact}).model_dump_json())
    named = model.model_copy(update={"path": str(artifact)})
    for one in (model, named):
        assert certificate_finding(one, RewardModelGate(), number=2).verdict == "ok"


def test_the_adapter_of_a_training_comes_along_unless_it_was_changed_since(tmp_path: Path) -> None:
    artifact = tmp_path / "train_reward_model"
    model = model_in(artifact / "merged")
    adapter = artifact / "adapter" / "adapter_model.safetensors"
    adapter.parent.mkdir()
    adapter.write_bytes(weight_bytes(b"adapter" * 9))
    manifest = Manifest(
        stage=StageName.TRAIN_REWARD_MODEL,
        key="k",
        files=file_entries(artifact),
        created_at="2026-11-29T11:30:00+00:00",
    )
    (artifact / MANIFEST_FILE).write_text(manifest.model_dump_json())
    run = run_with(tmp_path / "run", model)
    (whole,) = further_model_inputs(run, True)
    assert whole.path == str(artifact)
    adapter.write_bytes(weight_bytes(b"another" * 9))
    (merged,) = further_model_inputs(run, True)
    assert merged.path == str(artifact / "merged")
    assert merged.digest == whole.digest, "what it is known by is its merged weights"


def test_a_reward_model_of_another_seed_is_trained_from_the_same_start_model(tmp_path: Path) -> None:
    changed = dict[str, set[int]]()
    for other in (None, 7):
        run = load_run_config(write_run(tmp_path, run={"name": "small", "seed": 3, "reward_model_seed": other})).config
        for stage in run.stages:
            changed.setdefault(stage.value, set()).add(run.seed_of(stage))
    assert {stage for stage, seeds in changed.items() if seeds != {3}} == {"train_reward_model"}
    assert changed["train_reward_model"] == {3, 7}


def test_a_further_model_without_one_place_is_refused_with_its_key(tmp_path: Path) -> None:
    both = FurtherRewardModel(hub_id="org/name", path="x", certificate="x")
    with pytest.raises(InvalidConfigError, match=r"train_policy\.rewards\.0\.others\.1.*both hub_id and path"):
        run_with(tmp_path, model_in(tmp_path / "one"), both)


@pytest.mark.parametrize(("key", "value"), [("combine", "best"), ("spread_weight", 0)])
def test_a_wrong_value_is_refused(tmp_path: Path, key: str, value: object) -> None:
    term = {"type": "reward_model", key: value}
    with pytest.raises(Exception, match=key):
        load_run_config(write_run(tmp_path, train_policy={"lora": {"r": 8}, "rewards": [term]}))
