"""A killed training must go on and end with the very weights that it would have had, on one rank and on two."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.contracts.spec import StageSpec
from containers.stages import train_reward_model
from tests.unit.factories.reward_model_factory import (
    merged_sha256,
    reward_model_config,
    reward_model_context,
    training_info_of,
)
from tests.unit.factories.spec_factory import make_spec, run_stage, start_stage

pytestmark = pytest.mark.stages


@pytest.fixture(scope="module")
def whole_weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the weights of a training that was never interrupted."""
    context = reward_model_context(tmp_path_factory.mktemp("whole"))
    train_reward_model.run(context)
    return merged_sha256(context.output)


class _Crash(BaseException):
    """Stands in for the end of a process: nothing catches it."""


def _crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Make the next training die when it logs this step."""
    from containers.training.callbacks import RecorderCallback

    log = RecorderCallback.on_log

    def on_log(self: Any, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == step:
            raise _Crash
        log(self, args, state, control, **rest)

    monkeypatch.setattr(RecorderCallback, "on_log", on_log)


def test_a_stage_killed_after_its_last_checkpoint_is_finished_without_another_step(
    tmp_path: Path, whole_weights: str
) -> None:
    context = reward_model_context(tmp_path)
    train_reward_model.run(context)
    shutil.rmtree(context.output)
    context.output.mkdir()
    train_reward_model.run(context)
    info = training_info_of(context)
    assert (info.resumed_from_step, info.num_steps) == (24, 24)
    assert merged_sha256(context.output) == whole_weights


@pytest.mark.parametrize("damage", [None, "adapter_model.safetensors", "rng_state.pth"])
def test_a_resumed_training_ends_with_the_same_weights_bit_for_bit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str | None,
    whole_weights: str,
) -> None:
    context = reward_model_context(tmp_path)
    with monkeypatch.context() as patch:
        _crash_at(patch, 15)
        with pytest.raises(_Crash):
            train_reward_model.run(context)
    assert (context.checkpoints / "checkpoint-12").is_dir()
    if damage:
        (context.checkpoints / "checkpoint-12" / damage).write_bytes(b"")
    train_reward_model.run(context)
    info = training_info_of(context)
    assert info.resumed_from_step == (8 if damage else 12)
    assert merged_sha256(context.output) == whole_weights
    steps = [json.loads(line)["step"] for line in (context.output / "curves.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == list(range(1, 25))
    assert len(steps) == 24 + 6


def _spec(tmp_path: Path, name: str, **changes: Any) -> StageSpec:
    context = reward_model_context(tmp_path)
    inputs = {"pairs": context.input_path("pairs"), "start_model": context.input_path("start_model")}
    schedule = TrainingSchedule(max_steps=60, eval_steps=4)
    (tmp_path / name).mkdir()
    return make_spec(
        tmp_path / name,
        StageName.TRAIN_REWARD_MODEL,
        reward_model_config(schedule=schedule),
        inputs,
        run_id=name,
        **changes,
    )


@pytest.mark.slow
def test_a_killed_stage_goes_on_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole, killed = _spec(tmp_path, "whole"), _spec(tmp_path, "killed")
    run_stage(whole, tmp_path / "whole.log")
    process = start_stage(killed, tmp_path / "killed.log")
    deadline = time.monotonic() + 200
    while not list((tmp_path / "killed" / "checkpoints").glob("checkpoint-1*/checkpoint_manifest.json")):
        assert process.poll() is None, (tmp_path / "killed.log").read_text()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "outcome.json").exists()
    run_stage(killed, tmp_path / "again.log")
    info = json.loads((tmp_path / "killed" / "output" / "training_info.json").read_text())
    assert info["resumed_from_step"] >= 10
    assert merged_sha256(tmp_path / "killed" / "output") == merged_sha256(tmp_path / "whole" / "output")


@pytest.mark.slow
def test_two_ranks_train_together_and_rank_zero_alone_writes(tmp_path: Path) -> None:
    plan = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)
    spec = _spec(tmp_path, "ranks", batch=plan)
    run_stage(spec, tmp_path / "ranks.log")
    outcome = json.loads((tmp_path / "ranks" / "outcome.json").read_text())
    values = {metric["name"]: metric["value"] for metric in outcome["metrics"]}
    assert values["validation_accuracy"] >= 0.95
    assert values["reload_max_difference"] <= 1e-4
    curves = [json.loads(line) for line in (tmp_path / "ranks" / "output" / "curves.jsonl").read_text().splitlines()]
    assert [point["step"] for point in curves if "loss" in point["values"]] == list(range(1, 61))
    manifests = list((tmp_path / "ranks" / "checkpoints").glob("checkpoint-*/checkpoint_manifest.json"))
    assert all("rng_state_1.pth" in manifest.read_text() for manifest in manifests) and manifests
