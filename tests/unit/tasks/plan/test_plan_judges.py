"""A plan that leaves out who judges promises memory that is not there, or a stage that ends hours earlier."""

import json
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.parts.training import LoraSettings
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.digests import artifact_digest, file_entries
from containers.contracts.manifest import LineageEntry, Manifest
from containers.contracts.names import MANIFEST_FILE, StageName
from tasks.config.loading import LoadedConfig
from tasks.plan.inputs.model_shape import ModelShape, lora_parameters, total_parameters
from tasks.plan.inputs.models import known_starts
from tasks.plan.run_plan import plan_run
from tests.unit.factories.plan_runs import SHAPE, figure_of, pair, run_on, stage_of

SETTINGS = {"max_prompt_length": 200, "max_completion_length": 50, "num_generations": 4, "lora": {"r": 8}}
LARGER = {**SHAPE, "num_hidden_layers": 40}
FLOAT32 = 4
POLICY, EVALUATION = StageName.TRAIN_POLICY, StageName.EVALUATE_POLICY


def run_with(folder: Path, *judges: dict[str, Any], **policy: Any) -> LoadedConfig:
    train_policy = {**SETTINGS, "algorithm": "rloo", **policy}
    evaluation = {"judges": list(judges), "max_prompt_length": 200, "max_completion_length": 50}
    return run_on(folder, [pair(100, 20, 30)] * 900, train_policy=train_policy, evaluate_policy=evaluation)


def model_in(folder: Path, shape: dict[str, Any] = SHAPE) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)


def judge(folder: Path, kind: str = "other_reward_model", *, shape: dict[str, Any] = SHAPE) -> dict[str, Any]:
    return {"type": kind, "name": "ours", "path": model_in(folder / "judge", shape)}


def memory(loaded: LoadedConfig, stage: StageName) -> dict[str, float]:
    return {figure.name: figure.value or 0 for figure in stage_of(plan_run(loaded), stage).memory}


def operations(loaded: LoadedConfig, stage: StageName) -> float:
    found = stage_of(plan_run(loaded), stage).work
    assert found is not None and found.value is not None
    return found.value


@pytest.mark.parametrize(("kind", "head"), [("other_reward_model", "score"), ("language_model", "language")])
def test_a_model_that_looks_is_beside_the_policy(tmp_path: Path, kind: Any, head: Any) -> None:
    found = memory(run_with(tmp_path, judge(tmp_path, kind), evidence={"judge": "ours"}), POLICY)
    assert found["judge ours"] == FLOAT32 * total_parameters(ModelShape.model_validate(SHAPE), head=head)
    assert not any(name.startswith("judge") for name in memory(run_with(tmp_path), POLICY))


def test_it_takes_time_in_training_and_afterwards_and_a_language_model_reads_both_answers_twice(tmp_path: Path) -> None:
    for stage in (POLICY, EVALUATION):
        nothing = operations(run_with(tmp_path), stage)
        scores, asks = (
            operations(run_with(tmp_path, judge(tmp_path, kind), evidence={"judge": "ours"}), stage)
            for kind in ("other_reward_model", "language_model")
        )
        assert nothing < scores < asks


def test_the_evaluation_has_room_for_the_larger_of_reward_model_and_judge_and_never_for_both(tmp_path: Path) -> None:
    small, large = (memory(run_with(tmp_path, judge(tmp_path, shape=shape)), EVALUATION) for shape in (SHAPE, LARGER))
    assert "reward model" in small and "judge ours" not in small
    assert "judge ours" in large and "reward model" not in large


def test_judges_whose_time_is_unknown_are_named(tmp_path: Path) -> None:
    address = {"type": "endpoint", "name": "far", "url": "http://127.0.0.1:1/v1", "model": "m"}
    unknown = {"type": "language_model", "name": "hidden", "hub_id": "org/name", "revision": "a" * 40}
    plan = plan_run(run_with(tmp_path, address, unknown, evidence={"judge": "far"}))
    for note in (figure_of(plan, POLICY, "looks").note, getattr(stage_of(plan, EVALUATION).time, "note", "")):
        assert "without the time of judge far" in note
    assert "judge far, hidden" in getattr(stage_of(plan, EVALUATION).time, "note", "")


def test_the_meters_that_need_the_reward_model_are_counted(tmp_path: Path) -> None:
    without = operations(run_with(tmp_path, evidence=None), POLICY)
    assert without < operations(run_with(tmp_path), POLICY) < without * 1.1


@pytest.mark.parametrize(("origin", "shares"), [("model", True), ("another", False)])
def test_a_further_reward_model_on_the_policys_own_weights_brings_its_adapter_alone(
    tmp_path: Path, origin: str, shares: bool
) -> None:
    artifact = tmp_path / "of-a-run" / "artifacts" / "train_reward_model"
    model_in(artifact / "merged")
    (artifact / "adapter").mkdir()
    (artifact / "adapter" / "adapter_model.safetensors").write_bytes(b"0" * 1000)
    started = LineageEntry(name="start_model", digest="sha256:1", origin=str((tmp_path / origin).resolve()))
    manifest = Manifest(
        stage=StageName.TRAIN_REWARD_MODEL,
        key="k",
        files=file_entries(artifact),
        lineage=(started,),
        created_at="2026-11-29T00:00:00Z",
    )
    (artifact / MANIFEST_FILE).write_text(manifest.model_dump_json())
    shape = ModelShape.model_validate(SHAPE)
    whole = FLOAT32 * total_parameters(shape, head="score")
    # The run's own reward model has its adapter and its head alone.
    own = FLOAT32 * (lora_parameters(shape, LoraSettings(r=8)) + shape.hidden_size)
    for named in (tmp_path / "of-a-run", artifact, artifact / "merged"):
        other = {"path": str(named), "certificate": str(tmp_path)}
        term = {"type": "reward_model", "normalise": "validation", "others": [other]}
        found = memory(run_with(tmp_path, rewards=[term]), POLICY)["2 reward models"]
        assert found == own + (1000 if shares else whole), named
    assert own < whole
    assert memory(run_with(tmp_path, rewards=[term], lora=None), POLICY)["2 reward models"] == 2 * whole


def test_a_start_model_that_the_run_makes_is_known_by_its_artifact_once_it_is_there(tmp_path: Path) -> None:
    run = run_with(tmp_path).config
    assert known_starts(run, {}) == {str(tmp_path / "model")}
    tuned = run.model_copy(update={"train_sft": TrainSftConfig()})
    assert not known_starts(tuned, {})
    manifest = Manifest(stage=StageName.TRAIN_SFT, key="k", files=(), created_at="2026-11-29T00:00:00Z")
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / MANIFEST_FILE).write_text(manifest.model_dump_json())
    assert known_starts(tuned, {StageName.TRAIN_SFT: tmp_path / "sft"}) == {artifact_digest(manifest)}
    (tmp_path / "sft" / MANIFEST_FILE).write_text("{")
    assert not known_starts(tuned, {StageName.TRAIN_SFT: tmp_path / "sft"})
