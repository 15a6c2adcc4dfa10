"""Win rates between arms decide what is shipped: they must be those of independent code, and many cells must not win by
chance."""

import random
from statistics import fmean

import pytest
from scipy import stats

from containers.arms.matrix import arm_cell, arm_value, corrected, paired_seeds, pairs_of_arms
from containers.arms.records import START, ArmCell, JudgedArms

PROMPTS = ["a", "a", "b", "b", "c", "c"]


def cell(**seeds: list[float | None]) -> ArmCell:
    points = {int(name.removeprefix("seed")): values for name, values in seeds.items()}
    made = arm_cell("grpo", "dpo", points, PROMPTS, confidence=0.95)
    assert made is not None
    return made


def test_a_prompt_counts_once_with_the_mean_over_its_seeds_and_completions() -> None:
    made = cell(seed0=[1, 1, 0, 0.5, 0.5, 0.5], seed1=[1, 1, 0, 0, 1, 0])
    # Prompt a: 1, prompt b: 1/8, prompt c: 1/2.
    assert made.win_rate.value == pytest.approx(fmean([1, 0.125, 0.5]))
    assert made.win_rate.count == 3
    assert (made.num_wins, made.num_ties, made.num_losses) == (5, 3, 4)
    assert made.by_seed == ((0, fmean([1, 1, 0, 0.5, 0.5, 0.5])), (1, fmean([1, 1, 0, 0, 1, 0])))
    assert made.p_value == 1.0  # one prompt for, one against


def test_a_pair_about_which_the_judge_could_not_tell_counts_nowhere() -> None:
    made = cell(seed0=[1, None, None, None, 0, 0.5])
    assert made.win_rate.value == pytest.approx(fmean([1, 0.25]))
    assert made.num_wins + made.num_ties + made.num_losses == 3
    assert arm_cell("grpo", "dpo", {0: [None] * 6}, PROMPTS, confidence=0.95) is None


def test_p_values_are_those_of_an_exact_sign_test_and_of_holms_rule() -> None:
    rng = random.Random(3)  # noqa: S311
    prompts = [f"p{number}" for number in range(60)]
    judges = []
    for name in ("exact", "tone"):
        cells = [
            arm_cell("x", other, {0: [float(rng.random() < rate) for _ in prompts]}, prompts, confidence=0.95)
            for other, rate in (("a", 0.5), ("b", 0.6), ("c", 0.75))
        ]
        judges.append(
            JudgedArms(name=name, type=name, shown=name, cells=tuple(one for one in cells if one is not None))
        )
    unusable = JudgedArms(
        name="biased", type="x", shown="x", cells=judges[0].cells, problem="it chose the first answer"
    )
    found = corrected([*judges, unusable])
    cells_of_all = [one for judge in found[:2] for one in judge.cells]
    for one in cells_of_all:
        exact = stats.binomtest(one.num_wins, one.num_wins + one.num_losses, 0.5).pvalue
        assert one.p_value == pytest.approx(exact)
    ordered = sorted(cells_of_all, key=lambda one: one.p_value)
    largest = 0.0
    for rank, one in enumerate(ordered):
        largest = max(largest, min(1.0, one.p_value * (len(ordered) - rank)))
        assert one.p_adjusted == pytest.approx(largest)
    assert found[2] == unusable  # a judge that is none takes no share of the error


@pytest.mark.waits
def test_among_equal_arms_a_winner_is_named_in_at_most_one_comparison_of_twenty() -> None:
    rng = random.Random(7)  # noqa: S311
    prompts = [f"p{number}" for number in range(50)]
    wrong = 0
    for _ in range(200):
        right = {arm: [float(rng.random() < 0.6) for _ in prompts] for arm in "abcde"}
        cells = []
        for one, _, other, _ in pairs_of_arms({arm: [0] for arm in right}):
            points = [0.5 + (own - its) / 2 for own, its in zip(right[one], right[other], strict=True)]
            made = arm_cell(one, other, {0: points}, prompts, confidence=0.95)
            assert made is not None
            cells.append(made)
        (judged,) = corrected([JudgedArms(name="exact", type="exact", shown="x", cells=tuple(cells))])
        wrong += any(one.is_shown for one in judged.cells)
    assert wrong <= 0.05 * 200


def test_better_needs_every_seed() -> None:
    prompts = [f"p{number}" for number in range(200)]
    mostly, rarely = [1.0] * 200, [0.0] * 80 + [0.5] * 120
    made = arm_cell("x", "y", {0: mostly, 1: rarely}, prompts, confidence=0.95)
    assert made is not None and made.p_adjusted < 0.05 and made.win_rate.value > 0.5
    assert not made.is_shown and made.better == ""
    agreed = arm_cell("x", "y", {0: mostly, 1: mostly}, prompts, confidence=0.95)
    assert agreed is not None and agreed.better == "x"
    lost = arm_cell("x", "y", {0: [0.0] * 200}, prompts, confidence=0.95)
    assert lost is not None and lost.better == "y"


def test_trainings_are_paired_by_seed_and_the_start_model_meets_each() -> None:
    assert paired_seeds([0, 1, 2], [0, 2]) == [(0, 0), (2, 2)]
    assert paired_seeds([0], [1]) == [(0, 1)]
    found = list(pairs_of_arms({START: [], "x": [0, 1], "y": [0]}))
    assert found == [("x", 0, START, 0), ("x", 1, START, 1), ("y", 0, START, 0), ("x", 0, "y", 0)]


def test_a_value_is_over_prompts_and_shows_its_seeds() -> None:
    made = arm_value(
        "grpo", {0: [1, 1, 0, 0, 1, 0], 1: [1, 1, 1, 0, None, None]}, PROMPTS, is_outcome=True, confidence=0.95
    )
    assert made is not None
    assert made.value.value == pytest.approx(fmean([1, 0.25, 0.5])) and made.value.unit == "fraction"
    assert made.by_seed == ((0, 0.5), (1, 0.75))
    assert arm_value("grpo", {0: [None] * 6}, PROMPTS, is_outcome=False, confidence=0.95) is None
