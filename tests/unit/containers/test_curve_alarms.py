"""Known failures of a policy's training are told once, with their figures; curves that are well tell nothing."""

import pytest

from containers.curve_alarms import AlarmWatch, alarms

WELL = {
    "reward": [0.1 * step for step in range(20)],
    "completion_length": [40.0 + step for step in range(20)],
    "entropy": [1.0 - 0.03 * step for step in range(20)],
    "kl": [0.2 * step - 0.3 for step in range(20)],
    "identical_completions_fraction": [0.2] * 20,
    "prompts_without_signal_fraction": [0.5] * 20,
    "chosen_log_ratio": [-0.01 * step for step in range(20)],
    "rejected_log_ratio": [-0.5 * step for step in range(20)],
}


def test_curves_that_are_well_raise_none() -> None:
    assert alarms(WELL) == {}
    assert alarms({}) == {}


@pytest.mark.parametrize(
    ("curves", "name", "words"),
    [
        (
            {"chosen_log_ratio": [-float(step) for step in range(10)], "rejected_log_ratio": [-8.0] * 10},
            "chosen log-ratio",
            "their log-ratio is -7 nats, that of the rejected ones -8",
        ),
        ({"completion_length": [20.0] * 5 + [90.0] * 5}, "length", "The completions grow: from 20 to 90 tokens"),
        ({"completion_length": [90.0] * 5 + [20.0] * 5}, "length", "The completions shrink: from 90 to 20 tokens"),
        ({"entropy": [2.0] * 5 + [0.1] * 5}, "entropy", "0.1 nats a token, 2 at the start"),
        (
            {"identical_completions_fraction": [0.96] * 5},
            "identical completions",
            "96% of the completions equal another",
        ),
        ({"prompts_without_signal_fraction": [1.0] * 5}, "no signal", "On 100% of the prompts"),
        ({"kl": [-4.0] * 5}, "negative KL", "The KL to the reference is -4 nats"),
    ],
)
def test_each_failure_is_told_with_its_figures(curves: dict[str, list[float]], name: str, words: str) -> None:
    found = alarms({**WELL, **curves})
    assert list(found) == [name]
    assert words in found[name]


def test_a_few_points_tell_nothing() -> None:
    assert alarms({"kl": [-4.0] * 4, "completion_length": [20.0] * 4 + [90.0] * 4}) == {}


def test_a_training_that_goes_on_is_told_each_failure_once() -> None:
    watch, told = AlarmWatch(), []
    for step in range(20):
        told += watch.new({"kl": -4.0, "entropy": 2.0 if step < 10 else 0.01})
    starts = ("The KL to the reference is -4 nats", "The entropy is nearly gone")
    assert len(told) == 2 and all(text.startswith(start) for text, start in zip(told, starts, strict=True))
