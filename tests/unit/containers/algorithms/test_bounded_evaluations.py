"""Evaluations during reward training on a part of the validation pairs: the same part each time, and all at the end."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from containers.algorithms.reward_model import pair_loss
from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.data.splits import rows_of_some_prompts
from containers.harness.context import StageContext
from containers.report.training import training_facts
from containers.stages import train_reward_model
from containers.training.checkpoints import checkpoint_step
from tests.unit.factories.reward_model_factory import reward_model_context, training_info_of, values_of
from tests.unit.factories.spec_factory import colour_rows, write_pairs

pytestmark = pytest.mark.stages

SCHEDULE = TrainingSchedule(max_steps=6, eval_steps=2)


def _weights(context: StageContext) -> list[bytes]:
    return [path.read_bytes() for path in sorted(context.output.rglob("*.safetensors"))]


def _state(context: StageContext) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((context.output / "trainer_state.json").read_text())
    return found


def _notes(context: StageContext) -> str:
    return (context.work / "events.jsonl").read_text()


def _rows(count: int, per_prompt: int) -> list[dict[str, Any]]:
    return [{"prompt": [{"role": "user", "content": f"Question {n // per_prompt}"}], "n": n} for n in range(count)]


def test_rows_are_drawn_by_prompt_seeded_and_in_their_order() -> None:
    rows = _rows(40, per_prompt=4)
    drawn = [row["n"] for row in rows_of_some_prompts(rows, most=12, seed=3, purpose="a")]
    assert drawn == sorted(drawn) and len(drawn) == 12
    assert len({number // 4 for number in drawn}) == 3, "three whole prompts"
    assert drawn == [row["n"] for row in rows_of_some_prompts(rows, most=12, seed=3, purpose="a")]
    assert drawn != [row["n"] for row in rows_of_some_prompts(rows, most=12, seed=4, purpose="a")]
    fewer = [row["n"] for row in rows_of_some_prompts(rows, most=6, seed=3, purpose="a")]
    assert len(fewer) == 6 and set(fewer) < set(drawn)
    assert rows_of_some_prompts(rows, most=40, seed=3, purpose="a") is rows
    assert rows_of_some_prompts(rows, most=None, seed=3, purpose="a") is rows


def test_a_bound_above_the_number_of_pairs_changes_nothing(tmp_path: Path) -> None:
    bounded, whole = (
        reward_model_context(tmp_path / f"{most}", schedule=SCHEDULE, max_eval_pairs=most) for most in (24, None)
    )
    values = [values_of(train_reward_model.run(context)) for context in (bounded, whole)]
    assert values[0].keys() == values[1].keys() and "validation_objective" not in values[0]
    assert _weights(bounded) == _weights(whole)
    history = [
        [entry["eval_loss"] for entry in _state(one)["log_history"] if "eval_loss" in entry] for one in (bounded, whole)
    ]
    assert history[0] == history[1] and len(history[0]) == 3
    assert training_info_of(bounded).num_evaluated is None
    assert "max_eval_pairs" not in _notes(bounded)


@pytest.mark.parametrize("pack", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("use_margin", [True, False], ids=["margins", "no margins"])
def test_last_and_chosen_weights_are_measured_on_all_pairs(tmp_path: Path, pack: bool, use_margin: bool) -> None:
    changes = {"schedule": SCHEDULE, "pack": pack, "use_margin": use_margin, "center_rewards_coefficient": 0.05}
    bounded, whole = (reward_model_context(tmp_path / f"{most}", max_eval_pairs=most, **changes) for most in (8, None))
    values = values_of(train_reward_model.run(bounded))
    train_reward_model.run(whole)
    state, wanted = _state(bounded), _state(whole)
    of_all = {entry["step"]: entry["eval_loss"] for entry in wanted["log_history"] if "eval_loss" in entry}
    some = {entry["step"]: entry["eval_loss"] for entry in state["log_history"] if "eval_loss" in entry}
    assert some.keys() == of_all.keys() == {2, 4, 6}
    assert all(abs(some[step] - of_all[step]) > 1e-6 for step in some), "another set of pairs"
    assert values["validation_objective_last_step"] == pytest.approx(of_all[6], rel=1e-5)
    assert values["validation_objective"] == pytest.approx(of_all[state["best_global_step"]], rel=1e-5)
    assert training_info_of(bounded).num_evaluated == 8
    shown = dict(training_facts(training_info_of(bounded)))["Best checkpoint"]
    assert str(shown).endswith("on a fixed draw of 8 validation examples")
    assert "Evaluations during training are of 8 of 24 validation pairs" in _notes(bounded)
    assert "On all 24 its loss is" in _notes(bounded)
    curves = (bounded.output / "curves.jsonl").read_text()
    assert "whole_loss" not in curves


def test_a_training_that_resumes_at_its_end_still_knows_the_last_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = reward_model_context(tmp_path, schedule=SCHEDULE, max_eval_pairs=8)
    with monkeypatch.context() as patch:
        patch.setattr(train_reward_model.RewardModelTraining, "save", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_reward_model.run(context)
    assert max(filter(None, map(checkpoint_step, context.checkpoints.glob("checkpoint-*")))) == 6
    values = values_of(train_reward_model.run(context))
    plain = reward_model_context(tmp_path / "plain", schedule=SCHEDULE, max_eval_pairs=8)
    assert (
        values["validation_objective_last_step"]
        == (values_of(train_reward_model.run(plain))["validation_objective_last_step"])
    )


def test_more_validation_pairs_than_the_default_are_drawn_from(tmp_path: Path) -> None:
    context = reward_model_context(tmp_path, schedule=TrainingSchedule(max_steps=1))
    write_pairs(tmp_path / "pairs", colour_rows(16), colour_rows(520, seed=5))
    train_reward_model.run(context)
    assert training_info_of(context).num_evaluated == 512


def test_too_few_pairs_to_choose_by_are_refused() -> None:
    with pytest.raises(ValidationError, match="max_eval_pairs"):
        TrainRewardModelConfig(max_eval_pairs=2)


def test_the_loss_of_pairs_is_bradley_terry_with_margin_and_centring() -> None:
    chosen, rejected = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 3.0])
    plain = float(pair_loss(chosen, rejected, margin=0.0, centring=None))
    assert plain == pytest.approx((0.313262 + 1.313262) / 2, abs=1e-5)
    more = float(pair_loss(chosen, rejected, margin=torch.tensor([1.0, 0.0]), centring=0.1))
    assert more == pytest.approx((0.693147 + 1.313262) / 2 + 0.1 * (1 + 25) / 2, abs=1e-5)
