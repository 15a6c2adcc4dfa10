"""A policy's win counts only by the word of a judge that did not train it."""

from pathlib import Path

import pytest

from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import JudgeFigures, PolicyEvaluation
from tasks.config.errors import InvalidConfigError
from tasks.config.gates import PolicyGate, judge_policy
from tasks.config.loading import load_run_config
from tests.unit.factories.report.report_records import policy_evaluation
from tests.unit.factories.run_files import write_run


def judge(name: str = "gold", *, low: float = 0.55, **changes: object) -> JudgeFigures:
    rate = Metric(name=f"{name}_win_rate", value=0.6, unit="fraction", ci_low=low, ci_high=0.65, count=40)
    fields = {
        "name": name,
        "type": "python",
        "shown": "a rule",
        "num_pairs": 40,
        "num_prompts": 40,
        "num_wins": 24,
        "num_ties": 0,
        "num_losses": 16,
        "win_rate": rate,
    }
    return JudgeFigures.model_validate({**fields, **changes})


def evaluation(*judges: JudgeFigures, gain: float = -1.0) -> PolicyEvaluation:
    difference = Metric(name="reward_difference", value=gain, unit="score", ci_low=gain - 0.5, ci_high=gain + 0.5)
    return policy_evaluation().model_copy(update={"judges": judges, "reward_difference": difference})


def test_an_independent_judge_decides_and_the_reward_is_only_reported() -> None:
    verdict = judge_policy(evaluation(judge()), PolicyGate())
    assert verdict.passed
    assert [rule.name for rule in verdict.rules] == ["win rate by gold"]
    assert not judge_policy(evaluation(judge(), gain=-1.0), PolicyGate(minimum_reward_gain=0.0)).passed


def test_a_win_within_chance_is_none_and_the_rule_says_how_many_prompts_would_show_it() -> None:
    verdict = judge_policy(evaluation(judge(low=0.45)), PolicyGate())
    assert not verdict.passed
    assert "about 90 prompts would show such a win" in verdict.rules[0].found
    assert judge_policy(evaluation(judge(low=0.45)), PolicyGate(held_by="figure")).passed


def test_every_independent_judge_must_agree() -> None:
    verdict = judge_policy(evaluation(judge(), judge("other", low=0.4)), PolicyGate())
    assert [rule.passed for rule in verdict.rules] == [True, False]
    assert not verdict.passed


@pytest.mark.parametrize("gain", [-1.0, 1.0])
def test_a_judge_that_trained_the_policy_opens_no_gate(gain: float) -> None:
    """A high reward does not help either: judges were named, and none is independent."""
    trained = judge(part_in_training="it is the reward model that the policy was trained to please")
    verdict = judge_policy(evaluation(trained, gain=gain), PolicyGate())
    assert not verdict.passed
    assert (verdict.rules[0].name, "trained to please" in verdict.rules[0].found) == ("independent judge", True)


def test_a_judge_that_could_not_tell_misses_its_rule() -> None:
    broken = judge(problem="it could not tell about 30 of 40 pairs, mostly since it is broken")
    verdict = judge_policy(evaluation(broken), PolicyGate())
    assert not verdict.passed and "could not tell about 30 of 40 pairs" in verdict.rules[0].found


def test_without_judges_the_reward_decides_as_before() -> None:
    assert not judge_policy(evaluation(gain=-1.0), PolicyGate()).passed
    assert judge_policy(evaluation(gain=1.0), PolicyGate()).passed


def mistakes(folder: Path, *judges: dict[str, object]) -> str:
    with pytest.raises(InvalidConfigError) as raised:
        load_run_config(write_run(folder, evaluate_policy={"judges": list(judges)}))
    return str(raised.value)


def test_mistakes_of_judges_are_told_with_their_keys_before_anything_runs(tmp_path: Path) -> None:
    text = mistakes(
        tmp_path,
        {"type": "math"},
        {"type": "other_reward_model"},
        {"type": "regex", "pattern": "e", "weight": 2},
        {"type": "regex", "pattern": "o"},
    )
    assert "evaluate_policy.judges.0: math compares completions with a reference answer" in text
    assert "evaluate_policy.judges.1: needs either `path` or `hub_id`" in text
    assert "evaluate_policy.judges.2.weight: is about training" in text
    assert "evaluate_policy.judges.3.name: `regex` is the name of another judge already" in text


def test_a_function_that_is_not_there_is_named(tmp_path: Path) -> None:
    text = mistakes(tmp_path, {"type": "python", "file": "absent.py"})
    assert "evaluate_policy.judges.0.file: absent.py cannot be read" in text


def test_the_run_s_own_reward_model_is_no_type_of_judge(tmp_path: Path) -> None:
    assert "evaluate_policy.judges.0" in mistakes(tmp_path, {"type": "reward_model"})


@pytest.mark.parametrize(("kind", "looks"), [("python", True), ("language_model", False), ("endpoint", False)])
def test_a_judge_changes_the_evaluation_and_the_training_that_it_looks_at(
    tmp_path: Path, kind: str, looks: bool
) -> None:
    file = tmp_path / "gold.py"
    file.write_text("def score(prompt, completion, answer, columns):\n    return 1\n")
    settings = {
        "python": {"file": str(file)},
        "language_model": {"path": str(tmp_path)},
        "endpoint": {"url": "http://127.0.0.1:9/v1", "model": "m"},
    }
    judges = [{"type": kind, **settings[kind]}]
    plain = load_run_config(write_run(tmp_path)).config
    judged = load_run_config(write_run(tmp_path, evaluate_policy={"judges": judges})).config
    for stage in StageName:
        same = plain.stage_config(stage) == judged.stage_config(stage)
        changes = {StageName.EVALUATE_POLICY, *([StageName.TRAIN_POLICY] if looks else [])}
        assert same == (stage not in changes), stage
