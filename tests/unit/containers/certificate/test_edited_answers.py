"""Edits are scored on both sides of drawn pairs, as far as max_length has room for them."""

import math
from collections import Counter

import pytest

from containers.certificate.edited_answers import drawn_pairs, score_edited_pairs
from containers.contracts.certificate import PADDING, REPETITION
from containers.evals.answer_edits import CUTTING, EDITS, LONGER_WORDING, NO_ROOM, NOT_ENGLISH
from containers.evals.length_effects import length_interventions
from containers.evals.scored_suite import ScoredPair
from containers.evals.suites.base import Comparison, SuiteItem
from containers.scoring.scorer import RewardScorer
from tests.unit.factories.made_reward_models import random_model, token_counter
from tests.unit.factories.tiny_policy import tiny_tokenizer

pytestmark = pytest.mark.stages

ANSWERS = ("The cat is red. The dog is blue. It is so.", "It is pink.", "The hen is green. The cow is grey.")


def scorer(*, counts: bool = True, max_length: int = 1024) -> RewardScorer:
    model = token_counter() if counts else random_model()
    return RewardScorer(model, tiny_tokenizer(), max_length=max_length, batch_size=8)


def pairs(scores: RewardScorer, *, num_items: int = 4, answers: tuple[str, ...] = ANSWERS) -> list[ScoredPair]:
    """The first answer of each item is better than the others."""
    comparisons = tuple(Comparison(0, place) for place in range(1, len(answers)))
    found = []
    for number in range(num_items):
        prompt = ({"role": "user", "content": f"What colour is animal {number}?"},)
        item = SuiteItem(f"item {number}", prompt, answers, "all", comparisons)
        own = scores.score([[*prompt, {"role": "assistant", "content": answer}] for answer in answers])
        found += [ScoredPair(item, one, own[one.better], own[one.worse]) for one in comparisons]
    return found


def test_each_answer_is_edited_once_though_several_pairs_have_it() -> None:
    counter = scorer()
    found = score_edited_pairs(counter, pairs(counter), limit=8, seed=1)
    assert len(found.padded) == 8
    assert len(found.edits) + len(found.not_edited) == 4 * len(ANSWERS) * len(EDITS)
    assert Counter(edit.kind for edit in found.edits)[PADDING] == 4 * len(ANSWERS)


def test_every_score_belongs_to_its_own_edit() -> None:
    """A counter of tokens rises with every edit that adds characters, and falls with every cut."""
    counter = scorer()
    found = score_edited_pairs(counter, pairs(counter), limit=8, seed=1)
    assert {edit.kind for edit in found.edits} >= {PADDING, REPETITION, LONGER_WORDING, CUTTING}
    assert all(math.copysign(1, edit.rise) == math.copysign(1, edit.doublings) for edit in found.edits)
    assert all(pair.padded_better > pair.better and pair.padded_worse > pair.worse for pair in found.padded)
    effects = length_interventions(found, score_std=0.1, confidence=0.95)
    assert all(figure.effect is None or (figure.effect.ci_low or 0) > 0 for figure in effects)


def test_an_edit_without_room_is_made_smaller_or_counted() -> None:
    plain = scorer(counts=False)
    shown = pairs(plain)
    longest = max(
        len(plain.tokenize([*pair.item.prompt, {"role": "assistant", "content": ANSWERS[0]}])) for pair in shown
    )
    tight = scorer(counts=False, max_length=longest + 4)
    found = score_edited_pairs(tight, shown, limit=8, seed=1)
    assert (PADDING, NO_ROOM) in found.not_edited and (REPETITION, NO_ROOM) in found.not_edited
    assert found.num_not_padded == 8 and not found.padded
    assert CUTTING in {edit.kind for edit in found.edits}
    roomy = score_edited_pairs(scorer(counts=False, max_length=longest + 30), shown, limit=8, seed=1)
    doublings = [edit.doublings for edit in roomy.edits if edit.kind == REPETITION]
    assert min(doublings) < 0.8, "the long answer was repeated in part"


def test_answers_in_another_language_get_no_english_filler() -> None:
    counter = scorer()
    german = ("Das ist eine lange Antwort auf Deutsch. Sie hat zwei Sätze.", "Das weiß ich leider nicht genau.")
    found = score_edited_pairs(counter, pairs(counter, answers=german), limit=4, seed=1)
    assert {reason for kind, reason in found.not_edited if kind == PADDING} == {NOT_ENGLISH}
    assert {edit.kind for edit in found.edits} >= {REPETITION}


def test_right_and_wrong_pairs_are_drawn_and_no_prompt_twice_before_each_came_once() -> None:
    counter = scorer()
    shown = pairs(counter, num_items=6)
    first = drawn_pairs(shown, limit=6, seed=3)
    assert len({pair.prompt_id for pair in first}) == 6
    assert len(drawn_pairs(shown, limit=9, seed=3)) == 9
    assert drawn_pairs(shown, limit=6, seed=3) == first != drawn_pairs(shown, limit=6, seed=4)
    assert drawn_pairs(shown, limit=0, seed=3) == []
    wrong = [ScoredPair(pair.item, pair.comparison, 0.0, 1.0) for pair in shown]
    assert len(drawn_pairs(wrong, limit=6, seed=3)) == 6


def test_without_a_pair_nothing_is_scored() -> None:
    assert score_edited_pairs(scorer(), [], limit=8, seed=1).edits == ()
    counter = scorer()
    assert score_edited_pairs(counter, pairs(counter), limit=0, seed=1).padded == ()
