"""What the reward model shows of answers: few of its own kind are outliers, others are, and padding is measured."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from containers.evidence.reward_model_meters import RewardModelMeters, are_outliers
from containers.rewards.base import Answered, StateReward, Value
from containers.rollouts.generate import Completion

pytestmark = pytest.mark.stages


class WordsReward(StateReward):
    """Its states are drawn around the number in a text; its score is the number of words, at most `room`."""

    def __init__(self, room: int = 10_000) -> None:
        self.room = room
        self.num_states = 0

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        return list(self.scored(answered))

    def fits(self, answered: Answered) -> bool:
        return len(answered.text.split()) <= self.room

    def scored(self, answered: Sequence[Answered]) -> list[float]:
        return [float(len(one.text.split())) for one in answered]

    def states(self, answered: Sequence[Answered]) -> Any:
        self.num_states += len(answered)
        rows = [
            torch.randn(64, generator=torch.Generator().manual_seed(number)) + float(one.text.split()[0])
            for number, one in enumerate(answered, start=self.num_states)
        ]
        return torch.stack(rows) if rows else torch.zeros(0, 64)


def answers(count: int, *, where: float) -> list[Answered]:
    """Answers whose states lie around that number in each direction."""
    completion = Completion((1,), (2,), f"{where} words of an answer.", True)
    return [Answered(({"role": "user", "content": "?"},), completion)] * count


def test_one_of_a_hundred_further_points_is_an_outlier_and_the_bound_is_hotellings() -> None:
    generator = torch.Generator().manual_seed(3)
    mixing = torch.randn(16, 16, generator=generator)
    shares = []
    for _ in range(40):
        points = torch.randn(128 + 500, 16, generator=generator) @ mixing
        shares.append(float(are_outliers(points[:128], points[128:]).double().mean()))
    assert np.mean(shares) == pytest.approx(0.01, abs=0.003)
    # By numpy and scipy, for one reference.
    reference, found = points[:128].double().numpy(), points[128:].double().numpy()
    inverse = np.linalg.inv(np.cov(reference.T))
    away = found - reference.mean(axis=0)
    statistic = 128 / 129 * np.einsum("ni,ij,nj->n", away, inverse, away) * (128 - 16) / (16 * 127)
    wanted = stats.f.sf(statistic, 16, 112) < 0.01
    assert (are_outliers(points[:128], points[128:]).numpy() == wanted).mean() > 0.998


def test_answers_elsewhere_are_outliers_and_the_start_models_are_not() -> None:
    meters = RewardModelMeters(WordsReward(), seed=1)
    first = meters.figures(answers(256, where=0.0))
    assert len(meters.reference) == 128 and first["reward_state_outlier_fraction"] <= 0.25
    same = [meters.figures(answers(256, where=0.0))["reward_state_outlier_fraction"] for _ in range(20)]
    assert np.mean(same) < 0.05
    assert meters.figures(answers(256, where=9.0))["reward_state_outlier_fraction"] == 1.0


def test_few_answers_say_nothing_of_outliers_until_there_are_enough() -> None:
    meters = RewardModelMeters(WordsReward(), seed=1)
    assert "reward_state_outlier_fraction" not in meters.figures(answers(40, where=0.0))
    assert "reward_state_outlier_fraction" in meters.figures(answers(40, where=0.0))
    assert len(meters.reference) == 80
    meters.figures(answers(40, where=0.0))
    assert len(meters.reference) == 80


def test_what_padding_adds_is_measured_where_it_fits() -> None:
    meters = RewardModelMeters(WordsReward(), seed=1)
    found = meters.figures(answers(64, where=0.0))
    assert found["padding_rise"] > 0
    assert meters.padding(answers(64, where=0.0)) == {
        "padding_rise": found["padding_rise"],
        "padding_rise_spread": 0.0,
    }
    assert "padding_rise" not in RewardModelMeters(WordsReward(room=6), seed=1).figures(answers(64, where=0.0))


def test_a_resumed_training_goes_on_with_the_same_reference() -> None:
    meters = RewardModelMeters(WordsReward(), seed=1)
    meters.figures(answers(256, where=0.0))
    resumed = RewardModelMeters(WordsReward(), seed=1, reference=meters.reference)
    resumed.reward.num_states = meters.reward.num_states  # type: ignore[attr-defined]
    one, other = (each.figures(answers(256, where=0.3)) for each in (meters, resumed))
    assert one == other


def test_a_state_without_spread_does_no_harm() -> None:
    points = torch.zeros(64, 16)
    assert not are_outliers(points, points[:4]).any()
