"""Rewards in a training: tried before it, combined and counted in it, and the same after a resume."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from safetensors.torch import load_file

from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import REWARD_TRIAL_FILE, StageName
from containers.harness.context import StageContext
from containers.harness.errors import BadDataError, NoSignalError
from containers.stages import train_policy
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

QUESTIONS = {f"What is {one} plus {other}?": str(one + other) for one in (1, 2, 3) for other in (10, 20)}
# Completions of an untrained model are random bytes: about half of them have more of these letters than of others.
CODE = """
def score(prompt, completion, answer, columns):
    if not completion:
        return 0.0
    if completion[0] in "\\x00\\x01\\x02":
        raise ValueError("a control character")
    return float(sum(map(ord, completion)) % 2)
"""
OUTCOME = {"type": "python", "name": "even", "kind": "outcome", "file": "own.py", "code": CODE}


def context_of(folder: Path, *, answers: list[str] | None = None, **settings: Any) -> StageContext:
    folder.mkdir(parents=True)
    prompts = write_prompts(folder / "prompts", train=list(QUESTIONS), answers=answers or list(QUESTIONS.values()))
    inputs = {"prompts": prompts, "start_model": save_causal_model(folder / "start")}
    config = TrainPolicyConfig(
        **{
            "max_prompt_length": 64,
            "max_completion_length": 6,
            "lora": LoraSettings(r=4, alpha=8),
            "gradient_checkpointing": False,
            "optimizer": OptimizerSettings(learning_rate=1e-3),
            "schedule": TrainingSchedule(max_steps=4, save_steps=2, save_total_limit=4),
            **settings,
        }
    )
    return make_context(folder, StageName.TRAIN_POLICY, config, inputs)


def points_of(context: StageContext) -> list[dict[str, float]]:
    lines = (context.work / "events.jsonl").read_text().splitlines()
    values = [event["values"] for event in map(json.loads, lines) if event["type"] == "metrics"]
    return [point for point in values if "completion_length" in point]


def test_it_needs_no_reward_model_and_a_resume_has_the_same_scales_counts_and_weights(tmp_path: Path) -> None:
    length = {"type": "length", "target": (1, 2), "slope_tokens": 8, "weight": 0.2, "normalise": "running"}
    whole, broken = (context_of(tmp_path / name, rewards=(OUTCOME, length)) for name in ("whole", "broken"))
    for context in (whole, broken):
        train_policy.run(context)
    shutil.rmtree(broken.checkpoints / "checkpoint-4")
    shutil.rmtree(broken.output)
    broken.output.mkdir()
    train_policy.run(broken)
    one, other = (load_file(context.output / "model" / "model.safetensors") for context in (whole, broken))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    states = [
        json.loads((context.checkpoints / "checkpoint-4/policy_state.json").read_text()) for context in (whole, broken)
    ]
    assert states[0] == states[1] and states[0]["reward"]["scales"]["length"]["count"] == 32
    rows, again = (
        parquet.read_table(context.output / "completions.parquet").to_pylist() for context in (whole, broken)
    )
    assert rows == again
    for row in rows:
        assert (row["value_even"] is None) == (row["no_value"] is not None)
        assert row["value_even"] is not None or (row["advantage"] == 0 and "a control character" in row["no_value"])
    names = {"value_even", "value_length", "value_length_std", "value_even_same_fraction", "reward"}
    assert all(names <= set(point) for point in points_of(whole))


def test_a_reference_answer_that_the_reward_takes_for_wrong_ends_the_stage_before_it_trains(tmp_path: Path) -> None:
    context = context_of(tmp_path / "run", answers=["1", "2", "x ="] * 2, rewards=({"type": "math"},))
    with pytest.raises(BadDataError) as error:
        train_policy.run(context)
    told = str(error.value)
    assert "at least 90% are wanted (train_policy.reward_trial.minimum), of 6 prompts" in told
    assert "math: the reference answer counts as right in 67% of 6" in told and "answer `x =`" in told
    (bad,) = [row for row in json.loads((context.output / REWARD_TRIAL_FILE).read_text()) if row["share"] < 0.9]
    assert len(bad["missed"]) == 2 and not (context.checkpoints / "checkpoint-2").exists()


def test_a_function_that_takes_everything_for_right_is_refused(tmp_path: Path) -> None:
    blind = {**OUTCOME, "code": "def score(**_): return 1.0", "needs_answers": True}
    with pytest.raises(BadDataError) as error:
        train_policy.run(context_of(tmp_path / "run", rewards=(blind,)))
    told = str(error.value)
    for kind in ("no text", "the prompt itself", "the answer of another prompt"):
        assert f"even: {kind} counts as wrong in 0% of 6" in told
    assert "the reference answer" not in told


def test_prompts_without_answers_are_named_before_anything_is_compared(tmp_path: Path) -> None:
    context = context_of(tmp_path / "run", answers=["11", "", "12", "22", "", "23"], rewards=({"type": "math"},))
    with pytest.raises(BadDataError, match=r"2 of 6 prompts have no reference answer, which math .* first is prompt-1"):
        train_policy.run(context)


def test_a_training_in_which_nothing_differs_ends_and_says_so_with_the_reason(tmp_path: Path) -> None:
    broken = {**OUTCOME, "code": "def score(**_): raise OSError('no such host')"}
    settings = {"rewards": (broken,), "reward_trial": {"num_prompts": 0}, "max_steps_without_signal": 3}
    with pytest.raises(NoSignalError) as error:
        train_policy.run(context_of(tmp_path / "run", **settings))
    told = str(error.value)
    assert told.startswith("Step 3: in 3 steps in a row (train_policy.max_steps_without_signal)")
    assert "Completions without a value: 24 because `even: it raised OSError: no such host`" in told
