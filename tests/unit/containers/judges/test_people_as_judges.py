"""What people chose of blind pairs: the majority's word, ties where they differ, and how far they agree."""

import json
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judges import PeopleJudge
from containers.contracts.names import VERDICTS_FILE, StageName
from containers.harness.errors import MissingPrerequisiteError
from containers.judges import people
from containers.judges.base import Pair
from containers.judges.figures import Judgement, all_figures
from containers.judges.people import People
from containers.report.policy.judges import judge_blocks
from containers.rewards.base import Answered
from containers.rollouts.generate import Completion
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages


def row(place: int, by: str, choice: str, *, policy_first: bool = True) -> dict[str, Any]:
    return {"place": place, "by": by, "choice": choice, "policy_first": policy_first}


def pair(number: int) -> Pair:
    turns = ({"role": "user", "content": str(number)},)
    policy, reference = (
        Answered(turns, Completion((1,), (2, 3), text, True)) for text in (f"yes {number}", f"no {number}")
    )
    return Pair(policy, reference)


ROWS = [
    row(0, "ada", "first"),
    row(0, "ben", "second", policy_first=False),
    row(2, "ada", "second"),
    row(2, "ben", "first"),
    row(3, "ada", "tie"),
]


def test_the_word_of_most_counts_and_pairs_that_were_not_shown_are_none() -> None:
    verdicts = People(ROWS).verdicts([pair(number) for number in range(4)])
    assert [verdict.points for verdict in verdicts] == [1.0, None, 0.5, 0.5]
    assert [verdict.was_asked for verdict in verdicts] == [True, False, True, True]


def test_figures_are_over_the_pairs_that_were_shown_and_name_who_judged() -> None:
    judge, pairs = People(ROWS), [pair(number) for number in range(4)]
    judgement = Judgement(PeopleJudge(), judge.verdicts(pairs), judge.shown(), "", judge.places(), judge.people())
    (figures,) = all_figures([judgement], pairs, [f"p{number}" for number in range(4)], confidence=0.95)
    assert (figures.num_pairs, figures.num_wins, figures.num_ties, figures.num_losses) == (3, 1, 2, 0)
    assert figures.counts and not figures.untold
    assert figures.people is not None
    assert figures.people.judged == (("ada", 3), ("ben", 2))
    assert (figures.people.num_shared, figures.people.agreement) == (2, 0.5)
    text = repr(judge_blocks([figures]))
    assert "ada 3, ben 2" in text and "50.0 % of 2 shared pairs" in text
    assert "both orders" not in text


def test_a_person_who_always_chooses_the_first_answer_is_no_judge() -> None:
    judge, pairs = People([row(place, "ada", "first") for place in range(12)]), [pair(number) for number in range(12)]
    judgement = Judgement(PeopleJudge(), judge.verdicts(pairs), judge.shown(), "", judge.places(), judge.people())
    (figures,) = all_figures([judgement], pairs, [str(number) for number in range(12)], confidence=0.95)
    assert "chose the first answer in 100 %" in figures.problem and not figures.counts


@pytest.mark.parametrize("line", ["{", json.dumps(row(0, "ada", "both"))])
def test_damaged_choices_are_refused(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "choices"
    folder.mkdir()
    (folder / VERDICTS_FILE).write_text(line)
    config = EvaluatePolicyConfig(judges=(PeopleJudge(),))
    context = make_context(tmp_path, StageName.EVALUATE_POLICY, config, {"judge_people": folder})
    with pytest.raises(MissingPrerequisiteError, match="What people chose for people"):
        people.start(context, config, PeopleJudge())


def test_without_a_pair_people_say_nothing_and_do_not_count() -> None:
    judge, pairs = People([]), [pair(0), pair(1)]
    judgement = Judgement(PeopleJudge(), judge.verdicts(pairs), judge.shown(), "", judge.places(), judge.people())
    (figures,) = all_figures([judgement], pairs, ["a", "b"], confidence=0.95)
    assert figures.win_rate is None and not figures.counts
    assert judge_blocks([figures])
