"""Votes of people: who won decides the score, and what the model makes of ties is a figure of its own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from containers.evals.suites.arena import _areas_without_each, _num_below, judge
from containers.evals.suites.base import Comparison, ScoredItem, SuiteItem
from tests.unit.factories.suite_factory import INTERVALS, Row, read, vote_row


def flags_row(number: int, winner: str) -> Row:
    """As in lmsys/lmsys-arena-human-preference-55k: texts are JSON lists of turns."""
    return {
        "id": number,
        "model_a": "gpt-4-1106-preview",
        "model_b": "gpt-4-0613",
        "prompt": json.dumps([f"Question {number}?"]),
        "response_a": json.dumps([f"First answer {number}"]),
        "response_b": json.dumps([f"Second answer {number}"]),
        "winner_model_a": int(winner == "a"),
        "winner_model_b": int(winner == "b"),
        "winner_tie": int(winner == "tie"),
    }


def conversations_row(number: int, winner: str, *, turns: int = 1, differ: bool = False) -> Row:
    """As in lmsys/chatbot_arena_conversations."""
    before = [
        {"role": role, "content": f"{role} {turn}"} for turn in range(turns - 1) for role in ("user", "assistant")
    ]
    other = [*before[:-1], {"role": "assistant", "content": "else"}] if differ else before
    question = {"role": "user", "content": f"Question {number}?"}
    return {
        "question_id": f"q-{number}",
        "model_a": "koala-13b",
        "model_b": "vicuna-13b",
        "winner": winner,
        "judge": "arena_user_1",
        "conversation_a": [*before, question, {"role": "assistant", "content": f"First answer {number}"}],
        "conversation_b": [*other, question, {"role": "assistant", "content": f"Second answer {number}"}],
        "turn": turns,
        "language": "English",
    }


def votes(folder: Path, *outcomes: tuple[str, float, float]) -> list[ScoredItem]:
    """Scored votes: winner, score of a, score of b."""
    rows = read("arena", folder, [vote_row(number, winner) for number, (winner, _, _) in enumerate(outcomes)])
    return [ScoredItem(item, scores) for item, (_, *scores) in zip(rows.items, outcomes, strict=True)]


def test_ties_are_no_part_of_the_score(tmp_path: Path) -> None:
    """a right, b wrong, b right twice, equal scores half; two ties."""
    entries = votes(
        tmp_path, ("a", 2, 1), ("b", 2, 1), ("b", 0, 1), ("b", 0, 3), ("a", 1, 1), ("tie", 5, 0), ("tie", 0, 0)
    )
    figures = judge(entries, INTERVALS)
    assert figures.score is not None
    assert figures.score.value == 3.5 / 5
    assert figures.score.count == 5


def test_tie_separation_by_hand(tmp_path: Path) -> None:
    """Sizes 3, 2, 1 of decided votes against 0 and 2 of ties: 3 beats both, 2 beats one and equals one, 1 beats one."""
    entries = votes(tmp_path, ("a", 3, 0), ("b", 2, 0), ("a", 1, 0), ("tie", 4, 4), ("tie", 0, 2))
    (separation,) = judge(entries, INTERVALS).sections
    assert separation.name == "tie_separation"
    assert separation.value == pytest.approx((2 + 1.5 + 1) / 6)
    assert separation.count == 5


@pytest.mark.parametrize(("tie", "value"), [(0.0, 1.0), (1.0, 0.5), (9.0, 0.0)])
def test_tie_separation_is_one_where_ties_have_the_smallest_margins(tie: float, value: float, tmp_path: Path) -> None:
    """Four votes are never sure of it."""
    entries = votes(tmp_path, ("a", 1, 0), ("b", 1, 0), ("tie", tie, 0), ("tie", 0, tie))
    (separation,) = judge(entries, INTERVALS).sections
    assert separation.value == value
    assert separation.ci_low is not None and separation.ci_high is not None
    assert separation.ci_high - separation.ci_low > 0.8


def test_tie_separation_that_rests_on_one_tie_has_no_interval(tmp_path: Path) -> None:
    entries = votes(tmp_path, *[("a", 1.0 + number, 0.0) for number in range(30)], ("tie", 5.0, 0.0))
    (separation,) = judge(entries, INTERVALS).sections
    assert (separation.ci_low, separation.ci_high) == (None, None)


def test_the_areas_without_each_prompt_are_those_of_the_votes_left() -> None:
    """Prompts with votes of both kinds, of one, and equal sizes."""
    draw = np.random.default_rng(2)
    sizes = draw.integers(0, 6, size=60).astype(float)
    decided, prompts = draw.random(60) < 0.6, draw.integers(0, 12, size=60)

    def area(left: NDArray[np.bool_]) -> float:
        won, tied = sizes[decided & left, None], sizes[None, ~decided & left]
        return float(((won > tied) + 0.5 * (won == tied)).mean())

    found = _areas_without_each(sizes, decided, prompts, _num_below(sizes[decided], sizes[~decided]))
    assert found == pytest.approx([area(prompts != prompt) for prompt in range(12)])


@pytest.mark.parametrize("votes_of_a_prompt", [1, 4])
def test_the_interval_of_the_tie_separation_holds_the_truth(votes_of_a_prompt: int) -> None:
    """Decided margins are drawn with twice the spread of ties: the true area is 0.705."""
    draw, truth, held = np.random.default_rng(5), 2 / math.pi * math.atan(2), []
    for _ in range(150):
        entries = []
        for number in range(60 * votes_of_a_prompt):
            prompt = ({"role": "user", "content": f"question {number // votes_of_a_prompt}"},)
            is_tie = number % 3 == 0
            comparisons = () if is_tie else (Comparison(0, 1),)
            margin = float(draw.normal() * (1 if is_tie else 2))
            entries.append(ScoredItem(SuiteItem(f"{number:03}", prompt, ("a", "b"), "all", comparisons), (margin, 0.0)))
        (separation,) = judge(entries, INTERVALS).sections
        assert separation.ci_low is not None and separation.ci_high is not None
        held.append(separation.ci_low <= truth <= separation.ci_high)
    assert np.mean(held) >= 0.91


def test_without_ties_there_is_no_separation_and_without_a_decided_vote_no_score(tmp_path: Path) -> None:
    decided, ties = judge(votes(tmp_path, ("a", 1, 0)), INTERVALS), judge(votes(tmp_path, ("tie", 1, 0)), INTERVALS)
    assert decided.sections == ()
    assert ties.score is None
    assert ties.sections == ()


@pytest.mark.parametrize(
    ("written", "winner"),
    [("model_a", "a"), ("model_b", "b"), ("tie (bothbad)", "tie"), ("both_bad", "tie"), (" A ", "a")],
)
def test_the_words_of_the_arena_are_understood(written: str, winner: str, tmp_path: Path) -> None:
    said, meant = (read("arena", tmp_path, [vote_row(0, name)]).items[0] for name in (written, winner))
    assert said == meant


@pytest.mark.parametrize("winner", ["a", "b", "tie"])
def test_the_three_forms_of_a_vote_say_the_same(winner: str, tmp_path: Path) -> None:
    spoken = {"a": "model_a", "b": "model_b", "tie": "tie"}[winner]
    named, flags, conversations = (
        read("arena", tmp_path, [row]).items[0]
        for row in (vote_row(0, winner), flags_row(0, winner), conversations_row(0, spoken))
    )
    assert named.prompt == flags.prompt == conversations.prompt
    assert named.responses == flags.responses == conversations.responses
    assert named.comparisons == flags.comparisons == conversations.comparisons


def test_a_longer_conversation_is_one_prompt_only_while_both_sides_share_it(tmp_path: Path) -> None:
    rows = read(
        "arena",
        tmp_path,
        [conversations_row(0, "model_a", turns=2), conversations_row(1, "model_a", turns=2, differ=True)],
    )
    assert [len(item.prompt) for item in rows.items] == [3]
    assert rows.left_out == {"turns_differ_before_the_last": 1}


def test_battles_of_many_turns_without_the_others_answers_are_left_out(tmp_path: Path) -> None:
    row = {**flags_row(0, "a"), "prompt": json.dumps(["One?", "Two?"])}
    rows = read("arena", tmp_path, [row, flags_row(1, "a")])
    assert rows.left_out == {"turns_differ_before_the_last": 1}


@pytest.mark.parametrize("text", ["[null]", '["broken \\ud83d"]'])
def test_the_broken_texts_of_the_published_file_are_left_out(text: str, tmp_path: Path) -> None:
    rows = read("arena", tmp_path, [{**flags_row(0, "a"), "response_a": text}, flags_row(1, "a")])
    assert rows.left_out in ({"response_not_text": 1}, {"lone_surrogate": 1})


@pytest.mark.parametrize("row", [{**flags_row(0, "a"), "winner_tie": 1}, flags_row(0, "nobody"), vote_row(0, "c")])
def test_a_vote_without_one_winner_is_left_out(row: Row, tmp_path: Path) -> None:
    assert read("arena", tmp_path, [row]).left_out == {"winner_unknown": 1}


def test_text_in_brackets_that_is_no_list_is_taken_as_it_is(tmp_path: Path) -> None:
    row = {**flags_row(0, "a"), "response_a": "[not a list"}
    assert read("arena", tmp_path, [row]).items[0].responses[0] == "[not a list"
