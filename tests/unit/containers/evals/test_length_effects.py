"""What an edit does to a score is the evidence on length: its sign, its size, and how much is known of it."""

import numpy as np
import pytest

from containers.contracts.certificate import PADDING, REPETITION, REWRITING, LengthIntervention
from containers.evals.answer_edits import CUTTING, LONGER_WORDING, NO_RULE, SHORTER_WORDING
from containers.evals.length_effects import (
    EditedPairs,
    PaddedPair,
    ScoredEdit,
    length_interventions,
    padding_attack,
    together,
)

COPIES = 6


def interventions(edited: EditedPairs, *, score_std: float = 2.0) -> dict[str, LengthIntervention]:
    found = length_interventions(edited, score_std=score_std, confidence=0.95)
    return {intervention.name: intervention for intervention in found}


def edits(
    effect: float, *, kinds: tuple[str, ...], num_prompts: int = 40, noise: float = 0.0
) -> tuple[ScoredEdit, ...]:
    """Of a model whose score rises by `effect` per doubling."""
    generator = np.random.default_rng(3)
    found = []
    for place in range(num_prompts):
        for kind in kinds:
            doublings = float(generator.uniform(0.1, 1.5)) * (-1 if kind in (SHORTER_WORDING, CUTTING) else 1)
            rise = effect * doublings + noise * float(generator.normal())
            found.append(ScoredEdit(kind, f"prompt {place}", rise, doublings))
    return tuple(found)


def test_a_model_that_adds_two_per_doubling_is_found_by_every_edit_in_standard_deviations() -> None:
    kinds = (PADDING, REPETITION, LONGER_WORDING, SHORTER_WORDING, CUTTING)
    found = interventions(EditedPairs(edits=edits(2.0, kinds=kinds)))
    assert set(found) == {*kinds, REWRITING}
    for intervention in found.values():
        assert intervention.effect is not None and intervention.effect.unit == "SD per doubling"
        assert intervention.effect.value == pytest.approx(1.0)
        assert intervention.effect.ci_low == pytest.approx(1.0) == intervention.effect.ci_high
    assert found[SHORTER_WORDING].change is not None and found[SHORTER_WORDING].change.value < 0
    assert (found[REWRITING].num_answers, found[REWRITING].num_prompts) == (80, 40)


def test_a_penalty_on_every_edited_answer_is_no_effect_of_length_where_both_directions_are_known() -> None:
    longer = tuple(ScoredEdit(LONGER_WORDING, f"{place}", -1.0, 0.5) for place in range(20))
    shorter = tuple(ScoredEdit(SHORTER_WORDING, f"{place}", -1.0, -0.5) for place in range(20))
    effect = interventions(EditedPairs(edits=(*longer, *shorter)))[REWRITING].effect
    assert effect is not None and effect.value == pytest.approx(0.0)


def test_an_edit_that_hardly_changes_the_length_hardly_counts() -> None:
    real = tuple(ScoredEdit(LONGER_WORDING, f"{place}", 0.0, 1.0) for place in range(20))
    tiny = tuple(ScoredEdit(LONGER_WORDING, f"{place}", 1.0, 0.03) for place in range(20))
    effect = interventions(EditedPairs(edits=(*real, *tiny)))[LONGER_WORDING].effect
    assert effect is not None and 0 < effect.value < 0.03


def test_answers_of_one_prompt_are_one_piece_of_evidence() -> None:
    once = edits(0.5, kinds=(PADDING,), noise=1.0)
    first, repeated = (interventions(EditedPairs(edits=found))[PADDING].effect for found in (once, once * COPIES))
    assert first is not None and repeated is not None
    assert repeated.value == pytest.approx(first.value)
    assert repeated.ci_low == pytest.approx(first.ci_low) and repeated.ci_high == pytest.approx(first.ci_high)


@pytest.mark.parametrize(("num_prompts", "score_std"), [(2, 1.0), (20, 0.0)])
def test_two_prompts_or_equal_scores_say_nothing_and_the_answers_are_still_counted(
    num_prompts: int, score_std: float
) -> None:
    found = interventions(EditedPairs(edits=edits(1.0, kinds=(PADDING,), num_prompts=num_prompts)), score_std=score_std)
    assert (found[PADDING].effect, found[PADDING].num_answers) == (None, num_prompts)


def test_what_could_not_be_edited_is_counted_with_its_reason() -> None:
    not_edited = ((LONGER_WORDING, NO_RULE), (LONGER_WORDING, NO_RULE), (SHORTER_WORDING, "empty"))
    found = interventions(EditedPairs(not_edited=not_edited))
    assert found[LONGER_WORDING].not_edited_because == ((NO_RULE, 2),)
    assert found[REWRITING].num_not_edited == 3
    assert set(found) == {LONGER_WORDING, SHORTER_WORDING, REWRITING}


def _pair(better: float, worse: float, padded_better: float, padded_worse: float, prompt: str = "a") -> PaddedPair:
    return PaddedPair(prompt, better, worse, padded_better, padded_worse)


def test_filler_flips_a_pair_if_its_lower_side_then_scores_as_high_as_the_other_one() -> None:
    pairs = (
        _pair(2, 1, 9, 2, "a"),  # right: the worse side ties
        _pair(2, 1, 9, 1.9, "b"),  # right: not enough
        _pair(1, 2, 3, 9, "c"),  # wrong: the better side rises above
        _pair(1, 1, 0, 9, "d"),  # a tie has no order to flip
    )
    found = padding_attack(EditedPairs(padded=pairs, num_not_padded=3), confidence=0.95)
    assert (found.num_pairs, found.num_not_padded) == (2, 3)
    assert found.flips is not None and (found.flips.value, found.flips.count) == (0.5, 2)
    assert found.flips_of_either_order is not None
    assert (found.flips_of_either_order.value, found.flips_of_either_order.count) == (pytest.approx(2 / 3), 3)
    assert found.padded_accuracy is not None and (found.padded_accuracy.value, found.padded_accuracy.count) == (0.5, 4)
    assert found.mean_rise is not None and found.mean_rise.value == pytest.approx(0.95)


def test_pairs_that_repeat_do_not_make_the_padding_attack_look_surer() -> None:
    once = tuple(_pair(2, 1, 2, 1 + (place % 3 == 0) + place / 100, f"prompt {place}") for place in range(30))
    first, repeated = (padding_attack(EditedPairs(padded=pairs), confidence=0.95) for pairs in (once, once * COPIES))
    for name in ("flips", "flips_of_either_order", "mean_rise"):
        wanted, found = getattr(first, name), getattr(repeated, name)
        assert found.value == pytest.approx(wanted.value)
        width = wanted.ci_high - wanted.ci_low
        assert 0.999 * width <= found.ci_high - found.ci_low <= 1.1 * width


def test_without_a_pair_there_is_no_figure() -> None:
    found = padding_attack(EditedPairs(), confidence=0.95)
    assert (found.num_pairs, found.flips, found.padded_accuracy, found.mean_rise) == (0, None, None, None)
    assert length_interventions(EditedPairs(), score_std=1.0, confidence=0.95) == ()


def test_suites_are_taken_together() -> None:
    part = EditedPairs(edits(1.0, kinds=(PADDING,)), ((CUTTING, NO_RULE),), (_pair(2, 1, 2, 1),), 1)
    both = together([part, part])
    assert (len(both.edits), len(both.not_edited), len(both.padded), both.num_not_padded) == (80, 2, 2, 2)


def test_three_prompts_are_enough_for_an_effect() -> None:
    found = interventions(EditedPairs(edits=edits(1.0, kinds=(PADDING,), num_prompts=3)))[PADDING]
    assert found.effect is not None and (found.num_answers, found.num_prompts) == (3, 3)


@pytest.mark.parametrize("score_std", [0.5, 1.0, 4.0])
def test_an_effect_and_a_change_are_in_spreads_of_the_scores(score_std: float) -> None:
    found = tuple(ScoredEdit(PADDING, f"{place}", 3.0, 1.5) for place in range(5))
    padding = interventions(EditedPairs(edits=found), score_std=score_std)[PADDING]
    assert padding.change is not None and padding.change.value == pytest.approx(3 / score_std)
    assert padding.change.unit == "SD" and padding.change.name == "padding_change"
    assert padding.effect is not None and padding.effect.value == pytest.approx(2 / score_std)
    assert padding.mean_doublings == pytest.approx(1.5)


def test_an_intervention_without_an_edit_has_no_length() -> None:
    found = interventions(EditedPairs(not_edited=((CUTTING, NO_RULE),)))[CUTTING]
    assert (found.mean_doublings, found.effect, found.change, found.num_prompts) == (None, None, None, 0)


def test_filler_that_lowers_the_better_side_flips_no_pair_that_was_right() -> None:
    right, wrong = _pair(2, 1, 0, 1.5), _pair(1, 2, 2, 0)
    assert (right.flips, wrong.flips) == (False, True)
    assert not _pair(1, 2, 1.9, 9).flips
    assert _pair(2, 1, 0, 5).flips and _pair(1, 2, 5, 0).flips, "higher is flipped as well as equal"
