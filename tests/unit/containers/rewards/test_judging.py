"""A policy is judged by the sum of its rewards; what a reward cannot tell counts as nothing."""

import math
from collections.abc import Sequence

import pytest

from containers.contracts.configs.parts.rewards import LengthTerm, PythonTerm, RegexTerm, RewardModelTerm, RewardTerm
from containers.rewards.base import Answered, NoValue, Reward, StartedTerm, Value
from containers.rewards.judging import judge
from tests.unit.factories.prompt_factory import answered

pytestmark = pytest.mark.stages


class Listed(Reward):
    """Gives each text the value that stands in a table, and remembers what it was given."""

    def __init__(self, table: dict[str, Value]) -> None:
        self.table, self.seen = table, list[str]()

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        self.seen += [one.text for one in answered]
        return [self.table[one.text] for one in answered]


def outcome(name: str = "right", **settings: object) -> RewardTerm:
    return RegexTerm.model_validate({"pattern": ".", "kind": "outcome", "name": name, **settings})


def test_weights_clips_and_conditions_count_and_shaping_counts_where_nothing_is_right() -> None:
    right = StartedTerm(outcome(weight=2.0), Listed({"good": 1.0, "bad": 0.0}))
    brief = StartedTerm(LengthTerm(target=(0, 1), weight=0.5, clip=0.4), Listed({"good": -1.0, "bad": -1.0}))
    polite = StartedTerm(RegexTerm(pattern=".", name="polite", only_if="right"), Listed({"good": 0.25, "bad": 0.25}))
    found = judge([right, brief, polite], [answered("good"), answered("bad")])
    assert found.totals == pytest.approx((2.0 - 0.2 + 0.25, -0.2))
    assert found.values["polite"] == (0.25, 0.25)


def test_a_completion_gains_nothing_by_a_verifier_that_fails() -> None:
    term = StartedTerm(outcome(), Listed({"good": 1.0, "odd": NoValue("took 2 s")}))
    found = judge([term], [answered("odd"), answered("good")])
    assert found.totals == (0.0, 1.0)
    assert math.isnan(found.values["right"][0])


def test_a_term_normalised_in_training_is_normalised_over_both_models() -> None:
    term = PythonTerm(file="own.py", normalise="running")
    found = judge([StartedTerm(term, Listed({"a": 1.0, "b": 2.0, "c": 3.0}))], [answered(text) for text in "abc"])
    assert found.totals == pytest.approx((-1.0, 0.0, 1.0))
    assert found.values["python"] == (1.0, 2.0, 3.0)


def test_one_completion_of_a_prompt_is_scored_once_and_by_a_reward_model_one_text() -> None:
    other = ({"role": "user", "content": "Another"},)
    rows = [
        answered("a"),
        answered("b"),
        answered("a"),
        answered("a", tokens=2),
        answered("a", prompt=other),
    ]
    model, length = Listed({"a": 1.0, "b": 2.0}), Listed({"a": 1.0, "b": 2.0})
    found = judge([StartedTerm(RewardModelTerm(), model), StartedTerm(LengthTerm(target=(0, 9)), length)], rows)
    assert model.seen == ["a", "b", "a"]
    assert length.seen == ["a", "b", "a", "a"]
    assert found.values["reward_model"] == (1.0, 2.0, 1.0, 1.0, 1.0)
