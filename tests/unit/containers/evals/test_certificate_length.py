"""A length detector sold as a preference model is found out by these figures, and a good model is not accused."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from containers.contracts.certificate import LengthBias
from containers.evals import length_bias as module
from containers.evals.intervals import LinearFigure
from containers.evals.length_bias import length_bias, length_group
from containers.evals.length_effects import EditedPairs
from containers.evals.statistics import accuracy_metric
from containers.evals.suites.base import Intervals
from tests.unit.factories.report.scored_pairs import pairs_of_lengths, scored_pair

INTERVALS = Intervals(confidence=0.95, num_bootstrap=400, seed=1)
DRAW = np.random.default_rng(5)
LENGTHS = [(int(better), int(worse)) for better, worse in DRAW.integers(20, 900, size=(300, 2))]
NOISE = DRAW.normal(0, 0.3, size=300)


def _doublings(pair: tuple[int, int]) -> float:
    return math.log2(pair[0] / pair[1])


def _bias(margins: list[float]) -> LengthBias:
    return length_bias(pairs_of_lengths(LENGTHS, margins), INTERVALS, score_std=2.0, edited=EditedPairs())


def test_the_slope_is_what_a_doubling_adds_to_the_score_and_quality_is_no_slope() -> None:
    bias = _bias([1.5 + 0.7 * _doublings(pair) + noise for pair, noise in zip(LENGTHS, NOISE, strict=True)])
    assert bias.slope is not None and bias.standard_slope is not None
    assert bias.slope.value == pytest.approx(0.7, abs=0.05)
    assert bias.slope.ci_low is not None and bias.slope.ci_high is not None
    assert bias.slope.ci_low < 0.7 < bias.slope.ci_high
    assert bias.standard_slope.value == pytest.approx(bias.slope.value / 2)


def test_the_slope_is_that_of_least_squares() -> None:
    margins = [0.2 + 0.4 * _doublings(pair) + noise for pair, noise in zip(LENGTHS, NOISE, strict=True)]
    slope, _ = np.polyfit([_doublings(pair) for pair in LENGTHS], margins, 1)
    found = _bias(margins).slope
    assert found is not None and found.value == pytest.approx(float(slope))


def test_a_good_model_keeps_its_accuracy_at_equal_lengths_and_a_token_counter_loses_it() -> None:
    good = _bias([1.0 if place % 10 else -1.0 for place in range(300)])
    counter = _bias([float(better - worse) for better, worse in LENGTHS])
    assert good.controlled_accuracy is not None and counter.controlled_accuracy is not None
    assert good.controlled_accuracy.value == pytest.approx(0.9, abs=0.03)
    assert counter.controlled_accuracy.value == pytest.approx(0.5, abs=0.05)
    assert good.slope is not None and good.slope.ci_low is not None and good.slope.ci_high is not None
    assert good.slope.ci_low < 0 < good.slope.ci_high
    assert counter.slope is not None and counter.slope.ci_low is not None and counter.slope.ci_low > 0


def test_a_token_counter_on_data_whose_better_answer_is_longer_looks_good_until_lengths_are_equal() -> None:
    lengths = [(max(pair), min(pair)) if place % 10 else (min(pair), max(pair)) for place, pair in enumerate(LENGTHS)]
    pairs = pairs_of_lengths(lengths, [float(better - worse) for better, worse in lengths])
    bias = length_bias(pairs, INTERVALS, score_std=1.0, edited=EditedPairs())
    assert sum(pair.margin > 0 for pair in pairs) / len(pairs) > 0.88
    assert bias.controlled_accuracy is not None and bias.controlled_accuracy.value < 0.8


def test_where_every_pair_is_right_length_explains_nothing() -> None:
    found = _bias([1.0] * 300).controlled_accuracy
    assert found is not None and (found.value, found.ci_high) == pytest.approx((1.0, 1.0))
    assert found.ci_low is not None and 0.98 < found.ci_low < 1


def test_answers_of_one_length_say_nothing_about_length() -> None:
    pairs = pairs_of_lengths([(50, 50)] * 40, [1.0, -1.0] * 20)
    bias = length_bias(pairs, INTERVALS, score_std=1.0, edited=EditedPairs())
    assert (bias.slope, bias.standard_slope, bias.controlled_accuracy) == (None, None, None)
    assert [(metric.name, metric.count) for metric in bias.by_length_difference] == [("within 50", 40)]


def test_a_slope_that_one_prompt_tells_alone_has_no_interval() -> None:
    pairs = pairs_of_lengths([(100, 50)] * 3 + [(200, 50)], [1.0, 1.0, 1.0, 2.0])
    slope = length_bias(pairs, INTERVALS, score_std=1.0, edited=EditedPairs()).slope
    assert slope is not None and slope.value == pytest.approx(1.0)
    assert (slope.ci_low, slope.ci_high) == (None, None)


@pytest.mark.parametrize(("num_prompts", "least", "most"), [(3, 0.93, 1.0), (10, 0.91, 0.99), (50, 0.92, 0.98)])
def test_the_interval_of_the_slope_holds_the_truth_with_few_prompts_too(
    num_prompts: int, least: float, most: float
) -> None:
    """Two pairs a prompt that share what the prompt adds, and lengths with a heavy tail."""
    draw, held = np.random.default_rng(11), []
    for _ in range(300):
        doublings = 0.5 * draw.standard_t(4, size=2 * num_prompts)
        shared = np.repeat(draw.normal(size=num_prompts), 2)
        margins = 1 + 0.3 * doublings + shared + draw.normal(size=2 * num_prompts)
        prompts = np.repeat(np.arange(num_prompts), 2)
        sample = module._Sample(margins, doublings, np.ones(2 * num_prompts), prompts, num_prompts)
        slope = module._length_slope(sample, confidence=0.95)
        assert slope is not None and slope.ci_low is not None and slope.ci_high is not None
        held.append(slope.ci_low <= 0.3 <= slope.ci_high)
    assert least <= np.mean(held) <= most


def test_the_slopes_without_each_prompt_are_those_of_the_pairs_left() -> None:
    pairs = [
        scored_pair(place // 3, "b" * better, "w" * worse, (noise, 0.0))
        for place, ((better, worse), noise) in enumerate(zip(LENGTHS[:30], NOISE[:30], strict=True))
    ]
    sample = module._sample([replace(pair, weight=1.0 + place % 4) for place, pair in enumerate(pairs)])
    expected = []
    for prompt in range(10):
        left = sample.prompts != prompt
        slope, _ = np.polyfit(sample.doublings[left], sample.margins[left], 1, w=np.sqrt(sample.own_weights[left]))
        expected.append(float(slope))
    assert module._slopes_without_each(sample) == pytest.approx(expected)


def test_an_empty_answer_has_a_length_too() -> None:
    pairs = [scored_pair(place, "", "x" * place, (1.0, 0.0)) for place in range(1, 9)]
    assert length_bias(pairs, INTERVALS, score_std=1.0, edited=EditedPairs()).slope is not None


def test_pairs_of_one_prompt_are_left_out_together() -> None:
    """Nine copies of each pair are no more evidence: the interval stays as wide as with one."""
    margins = [0.3 * _doublings(pair) + noise for pair, noise in zip(LENGTHS[:60], NOISE, strict=False)]
    once = pairs_of_lengths(LENGTHS[:60], margins)
    nine_times = [pair for pair in once for _ in range(9)]
    widths = []
    for pairs in (once, nine_times):
        slope = length_bias(pairs, INTERVALS, score_std=1.0, edited=EditedPairs()).slope
        assert slope is not None and slope.ci_low is not None and slope.ci_high is not None
        widths.append(slope.ci_high - slope.ci_low)
    assert widths[1] == pytest.approx(widths[0], rel=1e-9)


@pytest.mark.parametrize("score_std", [0.5, 1.0, 4.0])
def test_the_standard_slope_is_in_spreads_of_the_scores(score_std: float) -> None:
    pairs = pairs_of_lengths(
        LENGTHS, [0.7 * _doublings(pair) + noise for pair, noise in zip(LENGTHS, NOISE, strict=True)]
    )
    bias = length_bias(pairs, INTERVALS, score_std=score_std, edited=EditedPairs())
    assert bias.slope is not None and bias.standard_slope is not None
    found, slope = bias.standard_slope, bias.slope
    assert slope.ci_low is not None and slope.ci_high is not None
    assert (found.value, found.ci_low, found.ci_high) == pytest.approx(
        (slope.value / score_std, slope.ci_low / score_std, slope.ci_high / score_std)
    )


def test_scores_without_a_spread_have_no_standard_slope() -> None:
    pairs = pairs_of_lengths(LENGTHS, [0.0] * 300)
    assert length_bias(pairs, INTERVALS, score_std=0.0, edited=EditedPairs()).standard_slope is None


@pytest.mark.parametrize(
    ("difference", "label"),
    [
        (-301, "shorter by more than 300"),
        (-300, "shorter by 51 to 300"),
        (-51, "shorter by 51 to 300"),
        (-50, "within 50"),
        (0, "within 50"),
        (50, "within 50"),
        (51, "longer by 51 to 300"),
        (300, "longer by 51 to 300"),
        (301, "longer by more than 300"),
    ],
)
def test_a_length_difference_is_in_the_group_that_names_it(difference: int, label: str) -> None:
    assert length_group(difference) == label


def test_where_every_pair_is_wrong_the_interval_begins_at_nought() -> None:
    found = _bias([-1.0] * 300).controlled_accuracy
    assert found is not None and (found.value, found.ci_low) == pytest.approx((0.0, 0.0))
    assert found.ci_high is not None and 0 < found.ci_high < 0.02


def test_fewer_than_three_prompts_say_nothing_about_length() -> None:
    lengths, margins = [(100, 50), (50, 100), (200, 50)], [1.0, -1.0, 2.0]
    for count, is_measured in ((2, False), (3, True)):
        pairs = pairs_of_lengths(lengths[:count], margins[:count])
        bias = length_bias(pairs, INTERVALS, score_std=1.0, edited=EditedPairs())
        assert (bias.slope is not None) is is_measured
        assert bias.num_pairs == count


def test_the_interval_does_not_depend_on_how_many_resamples_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    margins = [0.3 * _doublings(pair) + noise for pair, noise in zip(LENGTHS, NOISE, strict=True)]
    ends = []
    for held in (4_000_000, 300 * 64, 1):
        monkeypatch.setattr(module, "_RESAMPLED_VALUES", held)
        accuracy = _bias(margins).controlled_accuracy
        assert accuracy is not None
        ends.append((accuracy.ci_low, accuracy.ci_high))
    assert ends[1] == pytest.approx(ends[0], rel=1e-9)
    assert ends[2] == pytest.approx(ends[0], rel=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["nearly all right", "nearly all wrong"])
@pytest.mark.parametrize("others", [(3,), (3, 50, 101)], ids=["one prompt tells", "three prompts tell"])
def test_few_prompts_that_tell_make_the_accuracy_at_equal_lengths_no_surer_than_the_accuracy(
    others: tuple[int, ...], sign: float
) -> None:
    pairs = [
        scored_pair(place // 5, "b" * better, "w" * worse, (-sign if place in others else sign, 0.0))
        for place, (better, worse) in enumerate(LENGTHS[:200])
    ]
    found = length_bias(pairs, INTERVALS, score_std=1.0, edited=EditedPairs()).controlled_accuracy
    plain = accuracy_metric(
        [pair.margin for pair in pairs], name="a", confidence=0.95, clusters=[pair.prompt_id for pair in pairs]
    )
    assert found is not None and found.ci_low is not None and found.ci_high is not None
    assert plain.ci_low is not None and plain.ci_high is not None
    assert found.value == plain.value
    assert found.ci_low < plain.ci_low + 0.001
    assert found.ci_high > plain.ci_high - 0.001


def test_the_accuracy_at_equal_lengths_varies_as_its_resamples_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interval is made from residuals: the sum of their squares is the variance of the resamples."""
    seen: list[tuple[LinearFigure, float]] = []
    drawn: list[float] = []
    real_draws, real_interval = module._draws, module.share_interval

    def draws(*given: Any) -> Any:
        found = real_draws(*given)
        drawn.append(float(found.var()))
        return found

    def interval(figure: LinearFigure, *, confidence: float) -> tuple[float, float]:
        seen.append((figure, drawn[-1]))
        return real_interval(figure, confidence=confidence)

    monkeypatch.setattr(module, "_draws", draws)
    monkeypatch.setattr(module, "share_interval", interval)
    pairs = pairs_of_lengths(LENGTHS, [0.3 + noise for noise in NOISE])
    # Prompts of unlike numbers of pairs, so that wrong pairs weigh differently.
    turns = [({"role": "user", "content": f"question {math.isqrt(place)}"},) for place in range(len(pairs))]
    pairs = [replace(pair, item=replace(pair.item, prompt=one)) for pair, one in zip(pairs, turns, strict=True)]
    length_bias(pairs, INTERVALS, score_std=2.0, edited=EditedPairs())
    (figure, variance) = seen[-1]
    assert variance > 0
    assert float((figure.residuals**2).sum()) == pytest.approx(variance)
