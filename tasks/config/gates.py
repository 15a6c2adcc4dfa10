"""Gates: the rules for a model before the pipeline goes on, and the verdict with its figures. Pure.

Exception
├── GateClosedError         a model did not pass its gate, a person rejected it, or its approval timed out
└── PersonAwaitedError      a person must do something first
    └── GateWaitsError      a person must decide about a model, and has not yet
"""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from containers.contracts.base import Difference, Fraction, Frozen, Hours, Positive, Weight
from containers.contracts.certificate import TEST_SUITE, Certificate, ScoreParity
from containers.contracts.records import GateDecision, GateRule, GateVerdict, JudgeFigures, PolicyEvaluation
from containers.contracts.spec import ArtifactRef
from containers.formatting import moment, number, parity_text, sample_size
from tasks.config.gate_rules import Bound, HeldBy, accuracy_rule, length_rules, prompts_for_a_verdict

_HELD_BY = (
    "What keeps each bound. interval: its worse end, so that what is not known well enough does not pass; figure: the "
    "figure itself, and the verdict says how often guessing passes"
)
# A policy has hardly moved if at least this share of its completions equals the reference's word for word.
_HARDLY_MOVED = 0.9


class GateClosedError(Exception):
    """A model did not pass its gate and has no waiver, a person rejected it, or its approval timed out."""


class PersonAwaitedError(Exception):
    """A person must do something first; the run ends here, and goes on when it is started again after that."""


class GateWaitsError(PersonAwaitedError):
    """A person must decide about a model and has not yet."""

    def __init__(self, message: str, verdict: GateVerdict) -> None:
        super().__init__(message)
        self.verdict = verdict


class Waiver(Frozen):
    """A person overrules a gate; both fields go into the report."""

    by: str = Field(min_length=1, description="Who")
    reason: str = Field(min_length=1, description="Why the pipeline goes on with a model that did not pass")


class ApprovalSettings(Frozen):
    """Who decides at a gate: the rules or a person."""

    waive: Waiver | None = Field(None, description="Go on although rules are missed; null: the rules hold")
    approval: Literal["none", "required", "when_closed"] = Field(
        "none",
        description="none: the rules alone decide; required: a person decides, also where the rules pass; when_closed: "
        "a person decides if the rules are missed, instead of the run ending",
    )
    approval_timeout_h: Hours | None = Field(
        168.0, description="Hours that a run waits for a person; null: without limit"
    )
    on_timeout: Literal["reject"] = Field(
        "reject", description="The outcome without a decision by then; silence never approves"
    )
    notify: str | None = Field(
        None,
        pattern=r"^[a-z0-9]+(-[a-z0-9]+)*/[a-z0-9]+(-[a-z0-9]+)*$",
        description="Prefect block that sends a message when a decision is due, as `slack-webhook/ml`; null: none",
    )

    @model_validator(mode="after")
    def _decides_once(self) -> Self:
        if self.waive is not None and self.approval != "none":
            raise ValueError(
                f"`waive` already decides what `approval: {self.approval}` leaves to a person. Keep one of the two."
            )
        return self

    def asks(self, verdict: GateVerdict) -> bool:
        """Whether a person decides on that verdict."""
        return self.approval == "required" or (self.approval == "when_closed" and not verdict.passed)

    def rules(self) -> dict[str, JsonValue]:
        """The rules, without the settings of waiver and approval."""
        return self.model_dump(mode="json", exclude=set(ApprovalSettings.model_fields))


class RewardModelGate(ApprovalSettings):
    """What the reward model must show before a policy is trained against it."""

    held_by: HeldBy = Field("interval", description=_HELD_BY)
    minimum_accuracy: Fraction = Field(0.6, description="Minimum of the pairwise accuracy on the test pairs")
    maximum_length_effect: Weight | None = Field(
        None,
        description="Standard deviations per doubling of the length that an edit of the same completion may move its "
        "score, over all suites: filler and repetition up, other wording up or down; null: only reported",
    )
    minimum_accuracy_at_equal_lengths: Fraction | None = Field(
        None,
        description="Minimum of the accuracy over the pairs of all suites, of margins without the length slope's part; "
        "a model that only counts length gets 0.5; null: only reported",
    )
    maximum_padding_flips: Fraction | None = Field(
        None,
        description="Maximum share of pairs whose order flips with filler on the rejected side, over all suites; null: "
        "only reported",
    )


class PolicyGate(ApprovalSettings):
    """What the policy must show before the run counts as a success."""

    held_by: HeldBy = Field("interval", description=_HELD_BY)
    minimum_win_rate: Fraction = Field(
        0.5,
        description="By each judge of `evaluate_policy.judges` that took no part in training, the win rate against the "
        "reference must exceed this",
    )
    minimum_reward_gain: Difference | None = Field(
        None,
        description="The reward difference to the reference must exceed this; null: 0 where no judge is named, else it "
        "is only reported",
    )
    maximum_kl: Positive | None = Field(None, description="Nats per completion; null: no limit")


class Gates(Frozen):
    """Both gates of the pipeline."""

    reward_model: RewardModelGate = RewardModelGate()
    policy: PolicyGate = PolicyGate()


def judge_reward_model(certificate: Certificate, gate: RewardModelGate) -> GateVerdict:
    """The verdict on a reward model: one rule for each suite that has a minimum, for length, padding and parity."""
    rules = [
        accuracy_rule(
            suite, gate.minimum_accuracy if suite.name == TEST_SUITE else suite.minimum_accuracy, gate.held_by
        )
        for suite in certificate.suites
    ]
    rules += length_rules(
        certificate.length,
        maximum_effect=gate.maximum_length_effect,
        minimum_equal=gate.minimum_accuracy_at_equal_lengths,
        maximum_flips=gate.maximum_padding_flips,
        held_by=gate.held_by,
    )
    parity = certificate.parity
    rules.append(
        GateRule(
            name="score parity",
            wanted=_parity_wanted(parity),
            found=f"{parity_text(parity)} on {len(parity.paths)} code paths",
            passed=parity.holds,
        )
    )
    return _verdict("reward_model", [rule for rule in rules if rule is not None], gate.waive)


def _parity_wanted(parity: ScoreParity) -> str:
    scores = f"on every code path scores within {number(parity.bound)}"
    if parity.margin_bound is None:
        return scores
    orders = f"at most {parity.orders_bound} of {parity.num_pairs} orders changed"
    return f"{scores}, margins within {number(parity.margin_bound)}, {orders}"


def judge_policy(evaluation: PolicyEvaluation, gate: PolicyGate, *, losses: Sequence[GateRule] = ()) -> GateVerdict:
    """The verdict on a policy: its win rate by each independent judge, or its reward gain; and the KL with a limit.

    If the policy writes what its reference writes, the verdict says so, and what to change.

    Args:
        losses: the rules on what it lost on standard sets.
    """
    gain, kl = evaluation.reward_difference, evaluation.kl
    rules = [_win_rule(judge, gate) for judge in evaluation.judges if judge.is_independent]
    minimum_gain = gate.minimum_reward_gain
    if minimum_gain is None and not evaluation.judges:
        minimum_gain = 0.0
    if evaluation.judges and not rules:
        rules.append(_no_independent_judge(evaluation))
    if minimum_gain is not None:
        rules.append(
            Bound(gate.held_by, low=minimum_gain, is_open=True).rule(
                "reward gain over the reference", gain, on=sample_size(gain, "prompts"), absent="", unit="score"
            )
        )
    if gate.maximum_kl is not None:
        rules.append(
            Bound(gate.held_by, high=gate.maximum_kl).rule(
                "KL to the reference", kl, on=sample_size(kl, "prompts"), absent="", unit="nats"
            )
        )
    return _verdict("policy", [*rules, *losses], gate.waive, advice=_hardly_moved(evaluation))


def _win_rule(judge: JudgeFigures, gate: PolicyGate) -> GateRule:
    """The rule on one judge, which took no part in training; it says how many prompts would show such a win."""
    bound = Bound(gate.held_by, low=gate.minimum_win_rate, is_open=True)
    found = None if judge.problem else judge.win_rate
    note = ""
    if found is not None and not bound.is_kept_by(found):
        wanted = prompts_for_a_verdict(found, minimum=gate.minimum_win_rate)
        note = f"about {wanted:,} prompts would show such a win" if wanted else ""
    return bound.rule(
        f"win rate by {judge.name}",
        found,
        on=f"{judge.num_prompts:,} prompts",
        absent=judge.problem or "it judged no pair",
        note=note,
        unit="fraction",
    )


def _no_independent_judge(evaluation: PolicyEvaluation) -> GateRule:
    why = "; ".join(f"{judge.name}: {judge.part_in_training}" for judge in evaluation.judges)
    return GateRule(name="independent judge", wanted="one that took no part in training", found=why, passed=False)


def demand(verdict: GateVerdict) -> None:
    """Refuse to go on unless the gate is open.

    Raises:
        GateClosedError: it is closed; lists the missed rules and how to overrule, or who rejected the model and why.
    """
    if verdict.opens:
        return
    decision = verdict.decision
    if decision is not None:
        figures = "\n".join(f"  {line}" for line in figure_lines(verdict))
        raise GateClosedError(f"{_why_refused(verdict, decision)}\n{figures}")
    missed = "\n".join(
        f"  {rule.name}: wanted {rule.wanted}, found {rule.found}" for rule in verdict.rules if not rule.passed
    )
    raise GateClosedError(
        f"The {verdict.model} did not pass its gate:\n{missed}\n"
        f"{verdict.advice or 'Improve the data or the training.'}\n"
        f"To go on anyway, set gates.{verdict.name}.waive with `by` and `reason`; both appear in the report."
    )


def require_certificate(verdict: GateVerdict) -> ArtifactRef:
    """Return the certificate of a reward model whose gate is open; it is an input of train_policy.

    Raises:
        GateClosedError: as `demand`; or the verdict has no certificate.
    """
    demand(verdict)
    if verdict.certificate is None:
        raise GateClosedError(
            "The reward model has no certificate, so no policy is trained against it. Run evaluate_reward_model on it."
        )
    return verdict.certificate


def figure_lines(verdict: GateVerdict) -> tuple[str, ...]:
    """A line for each rule: passed or missed, what was found, what is wanted."""
    return tuple(
        f"{'passed' if rule.passed else 'MISSED'}  {rule.name}: found {rule.found}, wanted {rule.wanted}"
        for rule in verdict.rules
    )


def _why_refused(verdict: GateVerdict, decision: GateDecision) -> str:
    change = f"`rlhf approve --gate {verdict.name}`"
    if decision.outcome == "rejected":
        reason = decision.reason.rstrip(".")
        return (
            f"The {verdict.model} was rejected at its gate by {decision.by} ({moment(decision.at)}): {reason}.\n"
            f"Improve the data or the training; to change the decision, run {change} with --replace."
        )
    if decision.outcome == "timed_out":
        return (
            f"No decision about the {verdict.model} came by {moment(decision.until)}, so it counts as rejected "
            f"(gates.{verdict.name}.on_timeout).\nA late decision still counts: {change}, then start the run again; or "
            f"give more time with gates.{verdict.name}.approval_timeout_h."
        )
    return f"The {verdict.model} has no decision that opens its gate (`{decision.outcome}`): {change}."


def _hardly_moved(evaluation: PolicyEvaluation) -> str:
    """Advice for a policy that writes what its reference writes; empty for any other."""
    identical = evaluation.identical_completions
    if identical is None or not identical.count or identical.value < _HARDLY_MOVED:
        return ""
    return (
        f"The policy writes exactly what its reference writes in {identical.value * identical.count:.0f} of "
        f"{identical.count:,} completions: it hardly moved. Raise train_policy.optimizer.learning_rate or "
        "train_policy.schedule.max_steps."
    )


def _verdict(
    name: Literal["reward_model", "policy"], rules: list[GateRule], waiver: Waiver | None, *, advice: str = ""
) -> GateVerdict:
    passed = bool(rules) and all(rule.passed for rule in rules)
    overruled = waiver if not passed else None
    return GateVerdict(
        name=name,
        passed=passed,
        rules=tuple(rules),
        waived_by=overruled.by if overruled else "",
        waiver_reason=overruled.reason if overruled else "",
        advice=advice,
    )
