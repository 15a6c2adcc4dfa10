"""A training that is told to stop saves the step that it has reached, and goes on from it as if nothing had been."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.harness.stopping import StageCancelledError
from containers.report.curves import is_of_the_clock
from containers.rollouts.rollout import ROLLOUT_FILE
from containers.scoring.scorer import score_head_sha256
from containers.stages import train_policy, train_reward_model
from containers.training.checkpoints import checkpoint_flaw, write_checkpoint_manifest
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.reward_model_factory import merged_sha256, reward_model_context, training_info_of
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _stop_in_step(
    monkeypatch: pytest.MonkeyPatch, context: StageContext, run: Callable[[StageContext], Any], step: int
) -> str:
    """Run the stage; SIGTERM comes while it computes this step. Returns what it said at its end."""
    from containers.algorithms.policy_trainer import PolicyTrainer
    from containers.algorithms.reward_model import PackedPairTrainer

    trainer = PackedPairTrainer if run is train_reward_model.run else PolicyTrainer
    training_step = trainer.training_step

    def signalled(self: Any, *arguments: Any, **rest: Any) -> Any:
        if self.state.global_step == step - 1 and not context.stop.requested:
            os.kill(os.getpid(), signal.SIGTERM)
        return training_step(self, *arguments, **rest)

    context.stop.listen()
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "training_step", signalled)
        with pytest.raises(StageCancelledError) as stopped:
            run(context)
    return str(stopped.value)


def _curves(context: StageContext) -> list[tuple[int, dict[str, float]]]:
    points = [json.loads(line) for line in (context.output / "curves.jsonl").read_text().splitlines()]
    return [
        (
            point["step"],
            {name: value for name, value in point["values"].items() if not is_of_the_clock(name)},
        )
        for point in points
    ]


def _resumed(context: StageContext) -> StageContext:
    """The context of the next attempt at the same work."""
    return StageContext(spec=context.spec, work=context.work, recorder=context.recorder)


@pytest.mark.parametrize(
    ("schedule", "signal_in", "saved"),
    [
        pytest.param({"eval_steps": 4}, 7, 7, id="at the step that was running"),
        pytest.param({"eval_steps": 4}, 8, 8, id="at a step that is saved anyway"),
        pytest.param({"eval_steps": 4, "logging_steps": 3}, 7, 8, id="not between two log lines"),
        pytest.param({"eval_steps": 4, "save_steps": 8}, 4, 4, id="where an evaluation is due"),
        pytest.param({"eval_steps": 6, "save_steps": 4}, 7, 7, id="between saves and evaluations of unlike steps"),
    ],
)
def test_a_stopped_reward_model_goes_on_exactly_from_the_first_step_that_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: dict[str, int], signal_in: int, saved: int
) -> None:
    plan = TrainingSchedule(max_steps=12, **schedule)
    whole = reward_model_context(tmp_path / "whole", schedule=plan)
    train_reward_model.run(whole)
    stopped = reward_model_context(tmp_path / "stopped", schedule=plan)
    said = _stop_in_step(monkeypatch, stopped, train_reward_model.run, signal_in)
    assert f"was stopped (SIGTERM) after step {saved}, which checkpoint-{saved} holds" in said
    assert checkpoint_flaw(stopped.checkpoints / f"checkpoint-{saved}", spec=stopped.spec) == ""
    resumed = _resumed(stopped)
    train_reward_model.run(resumed)
    assert training_info_of(resumed).resumed_from_step == saved
    assert merged_sha256(resumed.output) == merged_sha256(whole.output)
    assert _curves(resumed) == _curves(whole)


def policy_work(tmp_path: Path, **changes: int) -> tuple[TrainPolicyConfig, dict[str, Path]]:
    merged = save_reward_model(tmp_path / "reward_model" / "merged")
    inputs = {
        "certificate": write_certificate(tmp_path / "certificate", score_head_sha256=score_head_sha256(merged)),
        "prompts": write_prompts(tmp_path / "pairs", train=["Hi", "Which one?", "What is red?", "No"]),
        "start_model": save_causal_model(tmp_path / "start", seed=3),
        "reward_model": tmp_path / "reward_model",
    }
    config = TrainPolicyConfig(
        **changes,
        max_prompt_length=64,
        max_completion_length=8,
        lora=LoraSettings(r=4, alpha=8),
        gradient_checkpointing=False,
        optimizer=OptimizerSettings(learning_rate=1e-3, scheduler="linear"),
        schedule=TrainingSchedule(max_steps=6, save_steps=6),
    )
    return config, inputs


def test_a_rollout_of_another_policy_is_never_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written at step 2, it is used for steps 3 and 4; a checkpoint of step 3 cannot have one of step 1."""
    config, inputs = policy_work(tmp_path, num_iterations=2)
    context = make_context(tmp_path / "work", StageName.TRAIN_POLICY, config, inputs)
    _stop_in_step(monkeypatch, context, train_policy.run, 3)
    checkpoint = context.checkpoints / "checkpoint-3"
    policy = _change_rollout(checkpoint / ROLLOUT_FILE, step=1)
    write_checkpoint_manifest(checkpoint, spec=context.spec)
    with pytest.raises(StageError, match=rf"by the policy of step 1 \({policy}\) and used 1 times.*belongs to step 2"):
        train_policy.run(_resumed(context))


def _change_rollout(file: Path, *, step: int) -> str:
    """Say that it was written at another step; return what wrote it."""
    with safe_open(file, framework="pt") as found:
        told = json.loads(found.metadata()["told"])
        tensors = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118 - not a dict
    assert told["step"] == 2 and len(told["policy"]) == 16
    save_file(tensors, file, {"told": json.dumps({**told, "step": step})})
    return str(told["policy"])


@pytest.mark.parametrize(
    "changes", [{}, {"num_iterations": 2}, {"num_iterations": 2, "rollout_batch_size": 16}], ids=str
)
def test_a_stopped_policy_goes_on_exactly_also_in_the_middle_of_a_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int]
) -> None:
    """The checkpoint holds the completions that are to be used once more."""
    config, inputs = policy_work(tmp_path, **changes)
    whole, stopped = (
        make_context(tmp_path / name, StageName.TRAIN_POLICY, config, inputs) for name in ("whole", "stopped")
    )
    train_policy.run(whole)
    said = _stop_in_step(monkeypatch, stopped, train_policy.run, 3)
    assert "checkpoint-3 holds" in said
    resumed = _resumed(stopped)
    train_policy.run(resumed)
    assert training_info_of(resumed).resumed_from_step == 3
    weights = [(context.output / "model" / "model.safetensors").read_bytes() for context in (whole, resumed)]
    assert weights[0] == weights[1]
    assert _curves(resumed) == _curves(whole)
    states = [json.loads((context.output / "trainer_state.json").read_text()) for context in (whole, resumed)]
    assert states[0]["num_input_tokens_seen"] == states[1]["num_input_tokens_seen"] > 0
    rows = [parquet.read_table(context.output / "completions.parquet").to_pylist() for context in (whole, resumed)]
    assert rows[0] == rows[1]
