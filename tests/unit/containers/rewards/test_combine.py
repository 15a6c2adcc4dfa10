"""Where nothing is right, nothing is learnt; where all is right, shaping acts as much as its weight says."""

import json
import math

import pytest
import torch

from containers.contracts.configs.parts.rewards import ExactTerm, LengthTerm, RewardModelTerm, RewardTerm, outcomes_of
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.losses.advantages import group_spread
from containers.rewards.base import StartedTerm
from containers.rewards.combine import CombinedRewards, combined
from containers.rewards.policy_reward import PolicyReward, RunningScale, Scored
from containers.rewards.term_curves import term_curves
from tests.unit.factories.prompt_factory import completion, started

pytestmark = pytest.mark.stages

OUTCOME = ExactTerm(name="right")
LENGTH = LengthTerm(name="length", target=(1, 10), weight=0.1)
MODEL = RewardModelTerm(name="quality")


def of(
    values: dict[str, list[float]],
    terms: list[RewardTerm],
    *,
    k: int = 2,
    penalties: list[float] | None = None,
    masked: list[bool] | None = None,
):
    number = len(next(iter(values.values())))
    found: CombinedRewards = combined(
        {name: torch.tensor(row, dtype=torch.float64) for name, row in values.items()},
        terms,
        penalties=torch.tensor(penalties or [0.0] * number, dtype=torch.float64),
        masked=torch.tensor(masked or [False] * number),
        num_generations=k,
    )
    return found


def test_shaping_counts_only_where_a_completion_of_the_prompt_is_right() -> None:
    found = of({"right": [0, 0, 1, 0, 1, 1], "length": [0, -1, 0, -1, 0, -1]}, [OUTCOME, LENGTH])
    assert found.rewards.tolist() == pytest.approx([0, 0, 1, -0.1, 1, 0.9])
    assert found.divides.tolist() == [False, True, False]


def test_penalties_count_as_shaping() -> None:
    found = of({"right": [0, 0, 1, 0]}, [OUTCOME], penalties=[0.5, 0, 0, 0.5])
    assert found.rewards.tolist() == [0, 0, 1, -0.5]


def test_where_all_are_right_shaping_is_not_divided_by_its_small_spread() -> None:
    found = of({"right": [1, 1, 1, 0], "length": [0, -1, 0, 0]}, [OUTCOME, LENGTH])
    advantages = group_spread(found.rewards.view(2, 2), found.takes_part.view(2, 2), divides=found.divides)
    assert advantages[0].tolist() == pytest.approx([0.05, -0.05])
    assert advantages[1].tolist() == pytest.approx([0.7070, -0.7070], abs=1e-3)


def test_a_reward_model_beside_no_outcome_is_the_outcome_and_shaping_always_counts() -> None:
    assert outcomes_of([MODEL, LENGTH]) == {"quality"} and outcomes_of([MODEL, OUTCOME]) == {"right"}
    found = of({"quality": [-3, -2], "length": [0, -1]}, [MODEL, LENGTH])
    assert found.rewards.tolist() == pytest.approx([-3, -2.1]) and found.divides.all()


def test_a_reward_model_beside_an_outcome_is_shaping() -> None:
    found = of({"quality": [5, -5, 5, -5], "right": [0, 0, 0, 1]}, [MODEL, OUTCOME])
    assert found.rewards.tolist() == [0, 0, 5, -4]


def test_only_if_ties_a_term_to_its_outcome_and_clip_bounds_it() -> None:
    quality = RewardModelTerm(name="quality", only_if="right", clip=2.0, weight=0.5)
    found = of({"quality": [5, 5, -1, 0], "right": [0, 1, 1, 1]}, [quality, OUTCOME])
    assert found.rewards.tolist() == [0, 2, 0.5, 1]


def test_one_without_a_value_takes_no_part_and_is_no_right_answer_of_its_group() -> None:
    found = of({"right": [math.nan, 0, 1, math.nan], "length": [0, -1, 0, 0]}, [OUTCOME, LENGTH])
    assert found.takes_part.tolist() == [False, True, True, False]
    assert found.rewards[1] == 0 and found.divides.tolist() == [False, False]


def test_the_running_scale_is_that_of_all_values_so_far_and_goes_on_after_a_restore() -> None:
    scale, values = RunningScale(), torch.tensor([1.0, 2.0, math.nan, 3.0], dtype=torch.float64)
    found = scale.scaled(values)
    assert found[[0, 1, 3]].tolist() == pytest.approx([-1, 0, 1]) and found[2].isnan()
    again = RunningScale(**json.loads(json.dumps(vars(scale))))
    more = torch.tensor([4.0, 10.0], dtype=torch.float64)
    assert torch.equal(scale.scaled(more), again.scaled(more))
    everything = torch.tensor([1.0, 2, 3, 4, 10])
    assert (scale.mean, scale.spread) == pytest.approx((float(everything.mean()), float(everything.std())))
    assert RunningScale().scaled(torch.tensor([5.0, 5.0])).tolist() == [0, 0]


def _policy_reward(**settings: object) -> PolicyReward:
    terms = ({"type": "exact", "name": "right"}, {"type": "length", "target": (1, 10), "normalise": "running"})
    config = TrainPolicyConfig(num_generations=2, rewards=terms, **settings)
    return PolicyReward([StartedTerm(term, started(term)) for term in config.rewards], config)


def _scored(*rows: tuple[float, float, str]) -> list[Scored]:
    found = []
    for right, length, reason in rows:
        values = {"right": right, "length": length}
        found.append(Scored(values, values, (f"right: {reason}",) if reason else ()))
    return found


def test_reasons_and_scales_travel_with_the_checkpoint_and_cut_off_completions_can_be_masked() -> None:
    reward, rows = (
        _policy_reward(mask_cut_off=True),
        _scored((1, 0, ""), (0, -1, ""), (math.nan, 0, "late"), (1, 0, "")),
    )
    ended = [completion("x", ended=value) for value in (True, True, True, False)]
    found = reward.combined(rows, ended)
    assert found.takes_part.tolist() == [True, True, False, False]
    again = _policy_reward(mask_cut_off=True)
    again.restore(json.loads(json.dumps(reward.state())))
    assert again.unscorable == {"right: late": 1} and again.scales == reward.scales
    assert torch.equal(again.combined(rows, ended).rewards, reward.combined(rows, ended).rewards)


def test_each_term_has_its_curves() -> None:
    reward, rows = _policy_reward(), _scored((1, 0, ""), (0, -1, ""), (math.nan, 0, "late"), (1, 0, ""))
    reward.combined(rows, [completion("x")] * 4)
    found = term_curves(reward, rows, torch.tensor([1, 20, 3, 4]))
    assert found["value_right"] == pytest.approx(2 / 3) and found["value_length"] == -0.25
    assert found["value_right_same_fraction"] == 0.5 == found["value_length_same_fraction"]
    assert found["unscorable_fraction"] == 0.25
    assert found["value_length_length_correlation"] < -0.9
    assert found["value_right_std"] == pytest.approx(0.5**0.5)


def test_a_right_answer_that_is_masked_is_no_right_answer_of_its_group() -> None:
    found = of({"right": [1, 0], "length": [0, -1]}, [OUTCOME, LENGTH], masked=[True, False])
    assert found.takes_part.tolist() == [False, True] and found.rewards[1] == 0


def test_reasons_that_all_differ_are_counted_together_after_a_hundred() -> None:
    reward = _policy_reward()
    rows = _scored(*[(math.nan, 0, f"no word {number}") for number in range(150)])
    reward.combined(rows, [completion("x")] * 150)
    assert len(reward.unscorable) == 101 and reward.unscorable["other reasons"] == 50
    assert reward.unscorable_text().startswith(
        "Values that completions lacked, so that they trained nothing: 150 (50: other reasons; 1: right: no word 0;"
    )
