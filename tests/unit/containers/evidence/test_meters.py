"""A meter says that the policy is elsewhere, once it has said so for some steps."""

import pytest

from containers.evidence.meters import Meters, distinctness, limits_of, repetition
from containers.rollouts.generate import Completion

pytestmark = pytest.mark.stages


def answer(*tokens: int) -> Completion:
    return Completion((1,), tokens, "", True)


@pytest.mark.parametrize(
    ("tokens", "share"),
    [((1, 2, 3, 4, 1, 2, 3, 4), 0.2), ((7,) * 11, 7 / 8), ((1, 2, 3), 0.0), ((), 0.0), (tuple(range(50)), 0.0)],
)
def test_repetition_is_the_share_of_phrases_that_the_answer_has_had(tokens: tuple[int, ...], share: float) -> None:
    assert repetition(tokens) == pytest.approx(share)


@pytest.mark.parametrize(
    ("answers", "share"),
    [
        ([(1, 2, 3, 4)] * 5, 0.2),  # five prompts, the same phrase
        ([(1, 2, 3, 4, 5), (1, 2, 3, 4, 6)], 3 / 4),
        ([(1, 2, 3, 4, 1, 2, 3, 4)], 0.8),
        ([(1, 2), ()], 1.0),
        ([], 1.0),
    ],
)
def test_distinctness_is_the_share_of_different_phrases_in_all_answers(
    answers: list[tuple[int, ...]], share: float
) -> None:
    assert distinctness(answers) == pytest.approx(share)


def test_answers_that_grow_alike_over_all_prompts_are_outside() -> None:
    meters = Meters(limits_of([answer(*range(10)), answer(*range(12))], {"distinct_phrases_fraction": 0.9}))
    said = [text for _ in range(8) for text in meters.take({"distinct_phrases_fraction": 0.4})]
    assert said == ["40.0 % of the phrases of all answers are different ones, below the limit of 45.0 %"]


def test_limits_come_from_the_trusted_policys_answers() -> None:
    answers = [answer(*range(number)) for number in (8, 10, 12)]
    figures = {
        "repeated_phrases_fraction": 0.2,
        "distinct_phrases_fraction": 0.8,
        "identical_completions_fraction": 0.5,
        "reward_disagreement": 0.3,
        "reward_state_outlier_fraction": 0.02,
        "padding_rise": 0.1,
        "padding_rise_spread": 0.4,
        "kl": 0.0,
    }
    found = limits_of(answers, figures, maximum_kl=5.0)
    length = found["completion_length"]
    assert (length.start, length.low, length.high) == pytest.approx((10, 10 - 2 * 1.63299, 10 + 2 * 1.63299), abs=1e-4)
    distinct = found.pop("distinct_phrases_fraction")
    assert (distinct.start, distinct.low, distinct.high) == (0.8, pytest.approx(0.4), None)
    assert {name: limit.high for name, limit in found.items() if name != "completion_length"} == pytest.approx(
        {
            "repeated_phrases_fraction": 0.6,
            "identical_completions_fraction": 0.75,
            "reward_disagreement": 0.6,
            "reward_state_outlier_fraction": 0.51,
            "padding_rise": 0.9,
            "kl": 5.0,
        }
    )


def test_without_a_curve_there_is_no_limit_and_equal_lengths_leave_a_token_of_room() -> None:
    found = limits_of([answer(1, 2), answer(3, 4)], {})
    assert set(found) == {"completion_length"}
    assert found["completion_length"].high == 3


def test_a_meter_speaks_after_eight_steps_outside_once_and_again_when_the_next_look_is_due() -> None:
    meters = Meters(limits_of([answer(*range(10)), answer(*range(12))], {}))
    said = [meters.take({"completion_length": 20.0}) for _ in range(10)]
    assert [bool(texts) for texts in said] == [False] * 7 + [True] + [False] * 2
    assert said[7] == ["the answers have 20.0 tokens, above the limit of 13.0"]
    meters.muted.clear()
    assert meters.take({"completion_length": 20.0})
    meters.reset(limits_of([answer(*range(20))], {}))
    assert not meters.take({"completion_length": 20.0})


def test_short_answers_are_outside_too_and_curves_without_a_meter_are_ignored() -> None:
    meters = Meters(limits_of([answer(*range(10)), answer(*range(12))], {}))
    texts = [text for _ in range(8) for text in meters.take({"completion_length": 2.0, "entropy": 9.0})]
    assert texts == ["the answers have 2.00 tokens, below the limit of 9.00"]
    assert "entropy" not in meters.recent


def test_a_resumed_training_goes_on_with_the_same_meters() -> None:
    meters = Meters(limits_of([answer(*range(10)), answer(*range(12))], {}))
    for _ in range(5):
        meters.take({"completion_length": 20.0})
    again = Meters()
    again.restore(meters.state())
    assert again == meters
    said = [bool(again.take({"completion_length": 20.0})) for _ in range(3)]
    assert said == [False, False, True]
