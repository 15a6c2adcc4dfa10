"""Which judges look while a policy trains, on how many prompts, and which settings contradict each other."""

from typing import Any

import pytest

from containers.contracts.configs.parts.evidence import (
    EvidenceSettings,
    evidence_contradictions,
    evidence_judges,
    num_held_out,
    steps_between_looks,
)
from containers.contracts.configs.parts.judges import EndpointJudge, LanguageModelJudge, OtherRewardModel, PeopleJudge
from containers.contracts.configs.parts.rewards import ExactTerm, MathTerm, PythonTerm, RewardModelTerm

GOLD = PythonTerm(name="gold", file="gold.py", code="def score(*_): return 1")
ELSEWHERE = OtherRewardModel(path="models/rm")
LANGUAGE_MODEL = LanguageModelJudge(path="models/llm")
PEOPLE = PeopleJudge()
ENDPOINT = EndpointJudge(url="http://127.0.0.1:1/v1", model="m")


@pytest.mark.parametrize(
    ("num_prompts", "wanted", "held_out"),
    [
        (30_000, None, 128),
        (1_000, None, 100),
        (100, None, 16),
        (48, None, 12),
        (32, None, 8),
        (31, None, 0),
        (0, None, 0),
        (100, 40, 40),
        (100, 51, 0),
    ],
)
def test_prompts_are_held_out_where_enough_are_left(num_prompts: int, wanted: int | None, held_out: int) -> None:
    assert num_held_out(EvidenceSettings(num_prompts=wanted), num_prompts) == held_out


@pytest.mark.parametrize(
    ("judges", "rewards", "named", "found"),
    [
        ([LANGUAGE_MODEL, GOLD, ELSEWHERE], [RewardModelTerm()], None, ["gold", "other_reward_model"]),
        ([GOLD, ELSEWHERE], [RewardModelTerm()], "other_reward_model", ["other_reward_model", "gold"]),
        ([GOLD, LANGUAGE_MODEL], [RewardModelTerm()], "language_model", ["language_model", "gold"]),
        ([LANGUAGE_MODEL, ENDPOINT], [RewardModelTerm()], None, []),
        ([GOLD, ENDPOINT], [RewardModelTerm()], "endpoint", ["endpoint", "gold"]),
        ([PEOPLE, GOLD], [RewardModelTerm()], "people", ["people", "gold"]),
        ([GOLD], [GOLD.model_copy(update={"weight": 0.5})], None, []),
        ([], [MathTerm(weight=2.0), RewardModelTerm()], None, ["math"]),
        ([GOLD], [MathTerm()], None, ["gold"]),
        ([MathTerm(name="right")], [MathTerm()], None, ["math"]),
    ],
)
def test_judges_that_train_nothing_look_and_else_reference_answers(
    judges: list[Any], rewards: list[Any], named: str | None, found: list[str]
) -> None:
    chosen = evidence_judges(EvidenceSettings(judge=named), judges, rewards)
    assert [judge.name for judge in chosen] == found
    assert all(getattr(judge, "weight", 1.0) == 1.0 for judge in chosen)


@pytest.mark.parametrize(
    ("settings", "beta", "key", "text"),
    [
        ({"judges": (GOLD,)}, 0.1, "judges", "leave it out"),
        (
            {"minimum_rank_agreement": 0.5, "judge": "endpoint"},
            0.1,
            "minimum_rank_agreement",
            "endpoint compares pairs",
        ),
        ({"judge": "exact"}, 0.1, "judge", "one of the rewards"),
        ({"judge": "large"}, 0.1, "judge", "vLLM, which would take the memory"),
        ({"on_no_gain": "roll_back"}, 0.0, "on_no_gain", "beta is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], beta: float, key: str, text: str) -> None:
    judges = [ENDPOINT, ExactTerm(), GOLD, LanguageModelJudge(name="large", path="large", engine="vllm")]
    found = dict(evidence_contradictions(EvidenceSettings(**settings), judges, [ExactTerm()], beta=beta))
    assert list(found) == [key] and text in found[key]


@pytest.mark.parametrize(
    ("num_steps", "completions", "steps", "every"),
    [
        (100, 512, None, 13),
        (100, 128, None, 25),
        (1000, 64, None, 125),
        (50, 32, 7, 7),
        (3, 32, None, 1),
    ],
)
def test_looks_take_a_twentieth_of_the_completions_but_there_are_four(
    num_steps: int, completions: int, steps: int | None, every: int
) -> None:
    found = steps_between_looks(EvidenceSettings(steps=steps), num_steps=num_steps, completions_a_step=completions)
    assert found == every


def test_an_agreement_without_a_judge_is_refused() -> None:
    settings = EvidenceSettings(minimum_rank_agreement=0.8)
    found = dict(evidence_contradictions(settings, [LANGUAGE_MODEL], [RewardModelTerm()], beta=0.1))
    assert "no judge looks" in found["minimum_rank_agreement"]
    assert not dict(evidence_contradictions(settings, [GOLD], [RewardModelTerm()], beta=0.1))
