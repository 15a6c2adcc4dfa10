"""A gate that opens for a bad model costs GPU days; one that hides a waiver costs trust."""

from pathlib import Path

import pytest

from containers.contracts.certificate import LengthBias, LengthIntervention, PaddingAttack, ParityPath, ScoreParity
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import (
    GateDecision,
    GateRule,
    GateVerdict,
    Histogram,
    PolicyEvaluation,
)
from containers.contracts.spec import ArtifactRef
from tasks.config.errors import InvalidConfigError
from tasks.config.gates import (
    GateClosedError,
    PolicyGate,
    RewardModelGate,
    Waiver,
    demand,
    figure_lines,
    judge_policy,
    judge_reward_model,
    require_certificate,
)
from tasks.config.loading import load_run_config
from tests.unit.factories.report.certificate_factory import certificate, suite
from tests.unit.factories.run_files import write_run


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
    assert judge_reward_model(certificate([suite("test", 0.6)]), RewardModelGate(minimum_accuracy=0.6)).opens


def test_a_reward_model_below_its_minimum_stops_the_pipeline_and_the_rule_says_both_figures() -> None:
    verdict = judge_reward_model(certificate([suite("test", 0.59)]), RewardModelGate(minimum_accuracy=0.6))
    assert not verdict.opens
    assert (verdict.rules[0].wanted, verdict.rules[0].found) == ("interval from 60.0 % on", "59.0 % on 100 pairs")


def test_inverted_labels_pass_their_own_validation_but_not_the_labelled_rows() -> None:
    evaluation = certificate([suite("test", 0.99), suite("labelled_pairs", 0.02, minimum=0.8)])
    verdict = judge_reward_model(evaluation, RewardModelGate())
    assert {rule.name: rule.passed for rule in verdict.rules} == {
        "accuracy on test": True,
        "accuracy on labelled_pairs": False,
        "score parity": True,
    }
    assert not verdict.opens


def test_a_file_without_a_minimum_is_reported_but_does_not_judge() -> None:
    verdict = judge_reward_model(certificate([suite("test", 0.9), suite("other", 0.1)]), RewardModelGate())
    assert verdict.passed
    assert [rule.name for rule in verdict.rules] == ["accuracy on test", "score parity"]


def test_a_file_of_which_no_pair_was_left_fails_rather_than_passing_by_silence() -> None:
    assert not judge_reward_model(certificate([suite("test", None)]), RewardModelGate()).passed


def test_a_waived_gate_opens_but_still_says_that_it_did_not_pass() -> None:
    gate = RewardModelGate(minimum_accuracy=0.9, waive=Waiver(by="ada", reason="smoke test"))
    verdict = judge_reward_model(certificate([suite("test", 0.5)]), gate)
    assert verdict.opens
    assert not verdict.passed
    assert (verdict.waived_by, verdict.waiver_reason) == ("ada", "smoke test")


def test_a_waiver_that_was_not_needed_leaves_no_trace() -> None:
    gate = RewardModelGate(waive=Waiver(by="ada", reason="smoke test"))
    assert judge_reward_model(certificate([suite("test", 0.9)]), gate).waiver_reason == ""


def test_a_gain_whose_interval_reaches_zero_is_no_gain() -> None:
    assert not judge_policy(_policy(0.5, low=-0.01), PolicyGate()).passed
    assert judge_policy(_policy(0.5, low=0.01), PolicyGate()).passed


def test_a_policy_that_ran_away_from_its_reference_fails_a_bounded_kl() -> None:
    assert not judge_policy(_policy(0.5, low=0.1, kl=12), PolicyGate(maximum_kl=10)).passed


def test_a_policy_that_writes_what_its_reference_writes_is_told_so_with_what_to_change() -> None:
    verdict = judge_policy(_policy(0.0, low=-2e-8, identical=1.0), PolicyGate())
    assert verdict.rules[0].found == "0 (≈0 to 1.00) on 50 prompts"
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
        with pytest.raises(GateClosedError, match="Improve the data or the training"):
            demand(verdict)


def _decided(outcome: str, *, passed: bool) -> GateVerdict:
    verdict = judge_reward_model(certificate([suite("test", 0.9 if passed else 0.1)]), RewardModelGate())
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
    with pytest.raises(GateClosedError, match="No decision about the reward model came by 21 November 2026, 11:29 UTC"):
        demand(_decided("timed_out", passed=True))


@pytest.mark.parametrize(
    ("approval", "asks_if_passed", "asks_if_missed"),
    [("none", False, False), ("required", True, True), ("when_closed", False, True)],
)
def test_who_is_asked_is_what_the_gate_says(approval: str, asks_if_passed: bool, asks_if_missed: bool) -> None:
    gate = RewardModelGate.model_validate({"approval": approval})
    passed = judge_reward_model(certificate([suite("test", 0.9)]), gate)
    missed = judge_reward_model(certificate([suite("test", 0.1)]), gate)
    assert (gate.asks(passed), gate.asks(missed)) == (asks_if_passed, asks_if_missed)


def test_a_waiver_beforehand_beside_a_question_is_a_mistake() -> None:
    waive = {"by": "Ada", "reason": "smoke test"}
    with pytest.raises(ValueError, match="Keep one of the two"):
        RewardModelGate.model_validate({"approval": "required", "waive": waive})


def test_only_the_demands_of_a_gate_are_its_rules() -> None:
    assert RewardModelGate(approval="required", notify="slack-webhook/ml").rules() == {
        "held_by": "interval",
        "minimum_accuracy": 0.6,
        "maximum_length_effect": None,
        "minimum_accuracy_at_equal_lengths": None,
        "maximum_padding_flips": None,
    }
    assert set(PolicyGate().rules()) == {"held_by", "minimum_win_rate", "minimum_reward_gain", "maximum_kl"}


@pytest.mark.parametrize(
    "notify", ["slack-webhook", "slack-webhook/", "Slack/ML", "a/b/c", "https://hooks.slack.com/x"]
)
def test_a_notification_block_is_named_by_type_and_name(notify: str) -> None:
    with pytest.raises(ValueError, match="notify"):
        RewardModelGate.model_validate({"notify": notify})


def _length(flips: float | None, **effects: tuple[float, float, float]) -> LengthBias:
    """Effects are (value, low end, high end)."""
    return LengthBias(
        num_pairs=64,
        interventions=tuple(
            LengthIntervention(
                name=name,
                num_answers=128,
                effect=Metric(name="m", value=value, unit="SD per doubling", ci_low=low, ci_high=high, count=128),
            )
            for name, (value, low, high) in effects.items()
        ),
        padding=PaddingAttack(
            num_pairs=64, flips=None if flips is None else Metric(name="m", value=flips, unit="fraction", count=64)
        ),
    )


WEAK, STRONG, UNSURE = (0.1, 0.05, 0.15), (0.5, 0.45, 0.55), (0.1, -0.4, 0.6)
PUNISHED = (-0.8, -0.9, -0.7)


@pytest.mark.parametrize(
    ("length", "missed"),
    [
        (_length(0.1, padding=WEAK, repetition=WEAK, rewriting=WEAK), set()),
        (_length(0.1, padding=STRONG, repetition=WEAK, rewriting=WEAK), {"length effect of padding"}),
        (_length(0.1, padding=WEAK, repetition=UNSURE, rewriting=WEAK), {"length effect of repetition"}),
        (_length(0.1, padding=PUNISHED, repetition=PUNISHED, rewriting=WEAK), set()),
        (_length(0.1, padding=WEAK, repetition=WEAK, rewriting=PUNISHED), {"length effect of rewriting"}),
        (_length(0.1, padding=WEAK, repetition=WEAK, rewriting=UNSURE), {"length effect of rewriting"}),
        (_length(0.1, repetition=WEAK, cutting=STRONG), set()),
        (_length(0.3, padding=WEAK), {"order flipped by padding"}),
        (_length(None), {"length effect", "order flipped by padding"}),
        (_length(None, cutting=WEAK), {"length effect", "order flipped by padding"}),
    ],
)
def test_a_model_that_is_moved_by_length_misses_its_gate(length: LengthBias, missed: set[str]) -> None:
    gate = RewardModelGate(maximum_length_effect=0.3, maximum_padding_flips=0.25)
    verdict = judge_reward_model(certificate(length=length), gate)
    assert {rule.name for rule in verdict.rules if not rule.passed} == missed
    assert verdict.passed is not bool(missed)


def test_the_slope_across_pairs_closes_no_gate() -> None:
    slope = Metric(name="m", value=2.0, unit="SD per doubling", ci_low=1.9, ci_high=2.1, count=64)
    length = _length(0.1, padding=WEAK).model_copy(update={"standard_slope": slope})
    assert judge_reward_model(certificate(length=length), RewardModelGate(maximum_length_effect=0.3)).passed


def test_the_rules_on_length_name_the_figure_with_its_interval_and_its_bound() -> None:
    length = _length(0.1, padding=(0.42, 0.31, 0.5), rewriting=(0.02, -0.1, 0.14))
    verdict = judge_reward_model(certificate(length=length), RewardModelGate(maximum_length_effect=0.3))
    padding, rewriting = (rule for rule in verdict.rules if rule.name.startswith("length effect"))
    assert padding.wanted == "interval up to 0.300 SD per doubling"
    assert padding.found == "0.420 SD per doubling (0.310 to 0.500) on 128 answers"
    assert rewriting.wanted == "interval within −0.300 to 0.300 SD per doubling"
    assert (padding.passed, rewriting.passed) == (False, True)


def test_the_key_that_bounded_the_slope_is_refused_with_the_one_that_bounds_the_effect(tmp_path: Path) -> None:
    path = write_run(tmp_path, gates={"reward_model": {"maximum_length_slope": 1.0}})
    with pytest.raises(InvalidConfigError, match=r"maximum_length_slope: .*Did you mean `maximum_length_effect`\?"):
        load_run_config(path)


def test_the_key_that_counted_padded_pairs_is_refused_with_the_one_that_counts_edited_ones(tmp_path: Path) -> None:
    path = write_run(tmp_path, evaluate_reward_model={"num_padded_pairs": 8})
    with pytest.raises(InvalidConfigError, match=r"num_padded_pairs: .*Did you mean `num_edited_pairs`\?"):
        load_run_config(path)


@pytest.mark.parametrize(("found", "passed"), [(0.621, True), (0.62, True), (0.619, False), (None, False)])
def test_accuracy_at_equal_lengths_is_judged_where_it_is_demanded_and_never_passes_by_silence(
    found: float | None, passed: bool
) -> None:
    measured = None if found is None else Metric(name="m", value=found, unit="fraction", count=64)
    length = LengthBias(num_pairs=64, controlled_accuracy=measured)
    verdict = judge_reward_model(certificate(length=length), RewardModelGate(minimum_accuracy_at_equal_lengths=0.62))
    (rule,) = [rule for rule in verdict.rules if rule.name == "accuracy at equal lengths"]
    assert (rule.passed, verdict.passed) == (passed, passed)
    undemanding = judge_reward_model(certificate(length=length), RewardModelGate())
    assert [rule.name for rule in undemanding.rules] == ["accuracy on test", "score parity"]


def test_the_rule_on_equal_lengths_names_the_figure_its_interval_and_how_many_pairs() -> None:
    measured = Metric(name="m", value=0.498, unit="fraction", ci_low=0.483, ci_high=0.514, count=9219)
    length = LengthBias(num_pairs=9219, controlled_accuracy=measured)
    verdict = judge_reward_model(certificate(length=length), RewardModelGate(minimum_accuracy_at_equal_lengths=0.52))
    with pytest.raises(GateClosedError) as closed:
        demand(verdict)
    wanted = "accuracy at equal lengths: wanted interval from 52.0 % on, found 49.8 % (48.3 to 51.4 %) on 9,219 pairs"
    assert wanted in str(closed.value)


@pytest.mark.parametrize(("low", "passed"), [(0.52, True), (0.223, False)])
def test_a_high_accuracy_at_equal_lengths_of_which_little_is_known_does_not_pass(low: float, passed: bool) -> None:
    measured = Metric(name="m", value=0.975, unit="fraction", ci_low=low, ci_high=1.0, count=40)
    length = LengthBias(num_pairs=40, controlled_accuracy=measured)
    gate = RewardModelGate(minimum_accuracy_at_equal_lengths=0.52)
    assert judge_reward_model(certificate(length=length), gate).passed is passed


def test_parity_is_demanded_of_every_model() -> None:
    path = ParityPath(name="scorer of the policy stage", max_difference=3e-3)
    parity = ScoreParity(num_conversations=64, reference="logged by training", bound=1e-4, paths=(path,))
    verdict = judge_reward_model(certificate(parity=parity), RewardModelGate())
    assert [rule.name for rule in verdict.rules if not rule.passed] == ["score parity"]


def test_the_rule_of_parity_says_margins_and_orders_and_judges_each() -> None:
    def judged(**path: float) -> GateRule:
        found = ScoreParity(
            num_conversations=64,
            reference="logged by training",
            bound=0.5,
            num_pairs=32,
            typical_margin=2.0,
            margin_bound=0.3,
            orders_bound=1,
            paths=(ParityPath.model_validate({"name": "a", "max_difference": 0.1, **path}),),
        )
        return judge_reward_model(certificate(parity=found), RewardModelGate()).rules[-1]

    near = judged(max_margin_difference=0.1, num_orders_changed=1)
    assert near.passed and near.found == "5.0 % of a typical margin, 1 of 32 orders changed on 1 code paths"
    assert near.wanted == "on every code path scores within 0.500, margins within 0.300, at most 1 of 32 orders changed"
    assert not judged(max_margin_difference=0.31).passed
    assert not judged(num_orders_changed=2).passed
    assert not judged(max_difference=0.51).passed


def test_a_policy_is_trained_only_with_the_certificate_behind_an_open_gate() -> None:
    artifact = ArtifactRef(stage=StageName.EVALUATE_REWARD_MODEL, key="a" * 64, path="/c", digest="sha256:c")
    verdict = judge_reward_model(certificate([suite("test", 0.5)]), RewardModelGate())
    with pytest.raises(GateClosedError, match="did not pass"):
        require_certificate(verdict.model_copy(update={"certificate": artifact}))
    waived = verdict.model_copy(update={"waived_by": "Ada", "waiver_reason": "a trial"})
    assert require_certificate(waived.model_copy(update={"certificate": artifact})) == artifact
    with pytest.raises(GateClosedError, match="has no certificate"):
        require_certificate(waived)


@pytest.mark.parametrize(("kl", "passed"), [(9.99, True), (10.0, True), (10.01, False)])
def test_a_kl_on_its_limit_is_within_it(kl: float, passed: bool) -> None:
    assert judge_policy(_policy(0.5, low=0.1, kl=kl), PolicyGate(maximum_kl=10)).passed is passed


@pytest.mark.parametrize(("identical", "is_advised"), [(0.89, False), (0.9, True)])
def test_advice_to_move_more_begins_at_nine_tenths_of_equal_completions(identical: float, is_advised: bool) -> None:
    verdict = judge_policy(_policy(-0.5, low=-1, identical=identical), PolicyGate())
    assert bool(verdict.advice) is is_advised


def test_the_figures_of_a_verdict_say_for_each_rule_whether_it_passed() -> None:
    evaluation = certificate([suite("test", 0.9), suite("labelled", 0.1, minimum=0.8)])
    passed, missed, _ = figure_lines(judge_reward_model(evaluation, RewardModelGate()))
    assert passed.startswith("passed  accuracy on test: found 90.0 % on 100 pairs, wanted interval from 60.0 % on")
    assert missed.startswith("MISSED  accuracy on labelled: found 10.0 %")


def test_a_decision_that_opens_nothing_is_named_with_what_to_run() -> None:
    with pytest.raises(GateClosedError, match=r"no decision that opens its gate \(`waiting`\): `rlhf approve --gate"):
        demand(_decided("waiting", passed=True))
