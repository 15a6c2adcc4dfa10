"""Edit the answers of drawn pairs, and score them again: padding, repetition, rewriting, cutting, on both sides."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

from containers.certificate.suites import conversation
from containers.data.language import LanguageJudge
from containers.distributed.ranks import spread_over_ranks
from containers.evals.answer_edits import NO_ROOM, edits_of, padded
from containers.evals.length_effects import EditedPairs, PaddedPair, ScoredEdit
from containers.evals.scored_suite import ScoredPair
from containers.evals.suites.base import SuiteItem
from containers.scoring.scorer import RewardScorer

# Both padded sides of a pair are this many times as long as the longer one, if max_length allows it.
_PADDED_LENGTHS = 2
_Answer = tuple[str, int]
_Fitted = tuple[str, list[int]]


def score_edited_pairs(scorer: RewardScorer, pairs: Sequence[ScoredPair], *, limit: int, seed: int) -> EditedPairs:
    """Edit both sides of at most `limit` pairs, drawn with `seed` whether their order is right or wrong.

    An edit that exceeds max_length is replaced by a smaller one of its kind; if none fits, it is counted and left out.
    An answer of several drawn pairs is edited once.
    """
    drawn = drawn_pairs(pairs, limit=limit, seed=seed)
    edits, not_edited = _edits(scorer, drawn)
    fillers = [(pair, sides) for pair in drawn if (sides := _padded_sides(scorer, pair))]
    wanted = [tokens for _, _, _, (_, tokens) in edits] + [tokens for _, sides in fillers for tokens in sides]
    scores = iter(spread_over_ranks(wanted, scorer.score_tokens))
    return EditedPairs(
        edits=tuple(
            ScoredEdit(kind, item.prompt_id, next(scores) - before, math.log2(len(text) / len(item.responses[place])))
            for item, (place, before), kind, (text, _) in edits
        ),
        not_edited=tuple(not_edited),
        padded=tuple(
            PaddedPair(pair.prompt_id, pair.score_better, pair.score_worse, next(scores), next(scores))
            for pair, _ in fillers
        ),
        num_not_padded=len(drawn) - len(fillers),
    )


def drawn_pairs(pairs: Sequence[ScoredPair], *, limit: int, seed: int) -> list[ScoredPair]:
    """At most `limit` pairs in random order; no prompt has a second one before each has its first."""
    shuffled = random.Random(seed).sample(list(pairs), len(pairs))  # noqa: S311 - a draw, no secret
    earlier: Counter[str] = Counter()
    ranked = []
    for pair in shuffled:
        ranked.append((earlier[pair.prompt_id], pair))
        earlier[pair.prompt_id] += 1
    return [pair for _, pair in sorted(ranked, key=lambda entry: entry[0])][:limit]


def _edits(
    scorer: RewardScorer, drawn: Sequence[ScoredPair]
) -> tuple[list[tuple[SuiteItem, tuple[int, float], str, _Fitted]], list[tuple[str, str]]]:
    """Return (item, (place, score before), kind, edited answer) of each edit; (kind, reason) where there is none."""
    is_english = _english()
    answers = {
        (id(pair.item), place): (pair.item, place, score)
        for pair in drawn
        for place, score in (
            (pair.comparison.better, pair.score_better),
            (pair.comparison.worse, pair.score_worse),
        )
    }
    edits, not_edited = [], []
    for item, place, score in answers.values():
        answer = item.responses[place]
        for edit in edits_of(answer, is_english=is_english(answer)):
            fitted = _fitting(scorer, item, edit.texts)
            if fitted is None:
                not_edited.append((edit.kind, edit.reason or NO_ROOM))
            else:
                edits.append((item, (place, score), edit.kind, fitted))
    return edits, not_edited


def _english() -> Callable[[str], bool]:
    """A judge that is false for an answer that is surely in another language than English."""
    judge = LanguageJudge(("english",))
    return lambda answer: judge.judge_text(answer).kind != "other"


def _fitting(scorer: RewardScorer, item: SuiteItem, texts: Sequence[str]) -> _Fitted | None:
    """The first of the texts whose conversation fits in max_length, with its tokens; None if none does."""
    for text in texts:
        tokens = scorer.tokenize(conversation(item, text))
        if len(tokens) <= scorer.max_length:
            return text, tokens
    return None


def _padded_sides(scorer: RewardScorer, pair: ScoredPair) -> tuple[list[int], list[int]] | None:
    """Tokens of both sides, padded to the same length; None if one has no room."""
    longer = max(len(pair.better), len(pair.worse))
    length = _PADDED_LENGTHS * longer
    sides = [_fitting(scorer, pair.item, padded(text, length)) for text in (pair.better, pair.worse)]
    better, worse = sides
    return None if better is None or worse is None else (better[1], worse[1])
