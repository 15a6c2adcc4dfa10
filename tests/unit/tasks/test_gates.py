"""A gate that opens for a bad model costs GPU days; one that hides a waiver costs trust."""

import pytest

from containers.contracts.outcome import Metric
from containers.contracts.records import (
    GateDecision,
    GateVerdict,
    Histogram,
    PairFileEvaluation,
    PolicyEvaluation,
    RewardModelEvaluation,
)
from tasks.gates import (
    GateClosedError,
    PolicyGate,
    RewardModelGate,
    Waiver,
    demand,
    judge_policy,
    judge_reward_model,
)


def _file(name: str, accuracy: float | None, minimum: float | None = None) -> PairFileEvaluation:
    metric = None if accuracy is None else Metric(name="accuracy", value=accuracy, unit="fraction", count=100)
    return PairFileEvaluation(name=name, num_pairs=100, accuracy=metric, minimum_accuracy=minimum)


def _reward_model(*files: PairFileEvaluation) -> RewardModelEvaluation:
    return RewardModelEvaluation(
        files=files, score_mean=0, score_std=1, score_head_sha256="0" * 64, reload_max_difference=0
    )


def _policy(gain: float, low: float, kl: float = 0.1, identical: float | None = None) -> PolicyEvaluation:
    def metric(value: float, **more: float) -> Metric:
        return Metric(name="m", value=value, unit="score", count=50, **more)  # type: ignore[arg-type]

    return PolicyEvaluation(
        num_prompts=50,
        reward_policy=metric(1),
        reward_reference=metric(0),
        reward_difference=metric(gain, ci_low=low, ci_high=gain + 1),
        win_rate=metric(0.6),
        kl=metric(kl),
        length_policy=metric(9),
        length_reference=metric(9),
        ended_policy=metric(1),
        ended_reference=metric(1),
        identical_completions=None
        if identical is None
        else Metric(name="identical_completions", value=identical, unit="fraction", count=32),
        reward_differences=Histogram(edges=(0, 1), counts=(50,)),
    )


def test_a_reward_model_at_its_minimum_passes() -> None:
    assert judge_reward_model(_reward_model(_file("validation", 0.6)), RewardModelGate(minimum_accuracy=0.6)).opens


def test_a_reward_model_below_its_minimum_stops_the_pipeline_and_the_rule_says_both_figures() -> None:
    verdict = judge_reward_model(_reward_model(_file("validation", 0.59)), RewardModelGate(minimum_accuracy=0.6))
    assert not verdict.opens
    assert (verdict.rules[0].wanted, verdict.rules[0].found) == ("at least 60.0 %", "59.0 % on 100 pairs")


def test_inverted_labels_pass_their_own_validation_but_not_the_labelled_rows() -> None:
    evaluation = _reward_model(_file("validation", 0.99), _file("labelled_pairs", 0.02, minimum=0.8))
    verdict = judge_reward_model(evaluation, RewardModelGate())
    assert [rule.passed for rule in verdict.rules] == [True, False]
    assert not verdict.opens


def test_a_file_without_a_minimum_is_reported_but_does_not_judge() -> None:
    verdict = judge_reward_model(_reward_model(_file("validation", 0.9), _file("other", 0.1)), RewardModelGate())
    assert verdict.passed
    assert len(verdict.rules) == 1


def test_a_file_of_which_no_pair_was_left_fails_rather_than_passing_by_silence() -> None:
    assert not judge_reward_model(_reward_model(_file("validation", None)), RewardModelGate()).passed


def test_a_waived_gate_opens_but_still_says_that_it_did_not_pass() -> None:
    gate = RewardModelGate(minimum_accuracy=0.9, waive=Waiver(by="ada", reason="smoke test"))
    verdict = judge_reward_model(_reward_model(_file("validation", 0.5)), gate)
    assert verdict.opens
    assert not verdict.passed
    assert (verdict.waived_by, verdict.waiver_reason) == ("ada", "smoke test")


def test_a_waiver_that_was_not_needed_leaves_no_trace() -> None:
    gate = RewardModelGate(waive=Waiver(by="ada", reason="smoke test"))
    assert judge_reward_model(_reward_model(_file("validation", 0.9)), gate).waiver_reason == ""


def test_a_gain_whose_interval_reaches_zero_is_no_gain() -> None:
    assert not judge_policy(_policy(0.5, low=-0.01), PolicyGate()).passed
    assert judge_policy(_policy(0.5, low=0.01), PolicyGate()).passed


def test_a_policy_that_ran_away_from_its_reference_fails_a_bounded_kl() -> None:
    assert not judge_policy(_policy(0.5, low=0.1, kl=12), PolicyGate(maximum_kl=10)).passed


def test_a_policy_that_writes_what_its_reference_writes_is_told_so_with_what_to_change() -> None:
    verdict = judge_policy(_policy(0.0, low=-2e-8, identical=1.0), PolicyGate())
    assert verdict.rules[0].found == "0, interval from ≈0 (50 prompts)"
    with pytest.raises(GateClosedError) as closed:
        demand(verdict)
    wanted = (
        "The policy writes exactly what its reference writes in 32 of 32 completions: it hardly moved. "
        "Raise train_policy.optimizer.learning_rate or train_policy.schedule.max_steps."
    )
    assert wanted == verdict.advice
    assert wanted in str(closed.value)
    assert "gates.policy.waive" in str(closed.value)


def test_a_policy_that_writes_something_else_gets_no_advice_to_move_more() -> None:
    for evaluation in (_policy(-0.5, low=-1, identical=0.5), _policy(-0.5, low=-1)):
        verdict = judge_policy(evaluation, PolicyGate())
        assert verdict.advice == ""
        with pytest.raises(GateClosedError, match="Better data or training is the way"):
            demand(verdict)


def _decided(outcome: str, *, passed: bool) -> GateVerdict:
    verdict = judge_reward_model(_reward_model(_file("validation", 0.9 if passed else 0.1)), RewardModelGate())
    decision = GateDecision.model_validate(
        {"outcome": outcome, "by": "Ada", "reason": "so", "until": "2026-11-21T11:29:00+00:00"}
    )
    return verdict.model_copy(update={"decision": decision})


@pytest.mark.parametrize(
    ("outcome", "passed", "opens"),
    [
        ("approved", True, True),
        ("approved", False, False),
        ("waived", False, True),
        ("waived", True, False),
        ("rejected", True, False),
        ("rejected", False, False),
        ("waiting", True, False),
        ("timed_out", True, False),
        ("timed_out", False, False),
    ],
)
def test_only_a_word_that_fits_the_figures_opens_a_gate_and_silence_never_does(
    outcome: str, passed: bool, opens: bool
) -> None:
    verdict = _decided(outcome, passed=passed)
    assert verdict.opens is opens
    assert bool(verdict.closed_because) is not opens


def test_a_rejected_model_is_named_with_who_and_why() -> None:
    with pytest.raises(GateClosedError, match=r"rejected at its gate by Ada .*: so\.") as caught:
        demand(_decided("rejected", passed=True))
    assert "--replace" in str(caught.value)
    assert "90.0 % on 100 pairs" in str(caught.value)


def test_silence_is_named_as_such_with_the_key_that_says_so() -> None:
    with pytest.raises(GateClosedError, match="Nobody decided about the reward model by 21 November 2026, 11:29 UTC"):
        demand(_decided("timed_out", passed=True))


@pytest.mark.parametrize(
    ("approval", "asks_if_passed", "asks_if_missed"),
    [("none", False, False), ("required", True, True), ("when_closed", False, True)],
)
def test_who_is_asked_is_what_the_gate_says(approval: str, asks_if_passed: bool, asks_if_missed: bool) -> None:
    gate = RewardModelGate.model_validate({"approval": approval})
    passed = judge_reward_model(_reward_model(_file("validation", 0.9)), gate)
    missed = judge_reward_model(_reward_model(_file("validation", 0.1)), gate)
    assert (gate.asks(passed), gate.asks(missed)) == (asks_if_passed, asks_if_missed)


def test_a_waiver_beforehand_beside_a_question_is_a_mistake() -> None:
    waive = {"by": "Ada", "reason": "smoke test"}
    with pytest.raises(ValueError, match="Keep one of the two"):
        RewardModelGate.model_validate({"approval": "required", "waive": waive})


def test_only_the_demands_of_a_gate_are_its_rules() -> None:
    assert RewardModelGate(approval="required", notify="slack-webhook/ml").rules() == {"minimum_accuracy": 0.6}
    assert set(PolicyGate().rules()) == {"minimum_reward_gain", "maximum_kl"}


@pytest.mark.parametrize(
    "notify", ["slack-webhook", "slack-webhook/", "Slack/ML", "a/b/c", "https://hooks.slack.com/x"]
)
def test_a_notification_block_is_named_by_type_and_name(notify: str) -> None:
    with pytest.raises(ValueError, match="notify"):
        RewardModelGate.model_validate({"notify": notify})
