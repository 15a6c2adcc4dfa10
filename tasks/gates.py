"""Gates: the demands on a model before the pipeline goes on, and the verdict with its figures. Pure."""

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.records import GateRule, GateVerdict, PolicyEvaluation, RewardModelEvaluation
from containers.contracts.stage_configs import Fraction
from containers.human_text import percent, quantity

_VALIDATION = "validation"
# From this share of completions on that are the reference's word for word, a policy has hardly moved.
_HARDLY_MOVED = 0.9


class GateClosedError(Exception):
    """A model did not pass its gate and nobody waived it."""


class Waiver(Frozen):
    """A person overrules a gate; both fields go into the report."""

    by: str = Field(min_length=1, description="Who")
    reason: str = Field(min_length=1, description="Why the pipeline goes on with a model that did not pass")


class RewardModelGate(Frozen):
    """What the reward model must show before a policy is trained against it."""

    minimum_accuracy: Fraction = Field(0.6, description="Pairwise accuracy on the validation pairs")
    waive: Waiver | None = None


class PolicyGate(Frozen):
    """What the policy must show before the run counts as a success."""

    minimum_reward_gain: float = Field(
        0.0, description="The lower end of the interval of the reward difference to the reference must exceed this"
    )
    maximum_kl: float | None = Field(None, gt=0, description="Nats per completion; null: not demanded")
    waive: Waiver | None = None


class Gates(Frozen):
    """Both gates of the pipeline."""

    reward_model: RewardModelGate = RewardModelGate()
    policy: PolicyGate = PolicyGate()


def judge_reward_model(evaluation: RewardModelEvaluation, gate: RewardModelGate) -> GateVerdict:
    """The verdict on a reward model: its validation accuracy, and every pair file that has a minimum of its own."""
    rules = []
    for file in evaluation.files:
        minimum = gate.minimum_accuracy if file.name == _VALIDATION else file.minimum_accuracy
        if minimum is None:
            continue
        found = file.accuracy
        rules.append(
            GateRule(
                name=f"accuracy on {file.name}",
                wanted=f"at least {percent(minimum)}",
                found="no pair was left" if found is None else f"{percent(found.value)} on {found.count:,} pairs",
                passed=found is not None and found.value >= minimum,
            )
        )
    return _verdict("reward_model", rules, gate.waive)


def judge_policy(evaluation: PolicyEvaluation, gate: PolicyGate) -> GateVerdict:
    """The verdict on a policy: reward gain over the reference beyond its interval, and the KL where it is bounded.

    A policy that writes what its reference writes is told so, with what to change.
    """
    gain, kl = evaluation.reward_difference, evaluation.kl
    low = gain.value if gain.ci_low is None else gain.ci_low
    rules = [
        GateRule(
            name="reward gain over the reference",
            wanted=f"interval above {gate.minimum_reward_gain:g}",
            found=f"{quantity(gain.value, 'score')}, interval from {quantity(low, 'score')} "
            f"({gain.count or 0:,} prompts)",
            passed=low > gate.minimum_reward_gain,
        )
    ]
    if gate.maximum_kl is not None:
        rules.append(
            GateRule(
                name="KL to the reference",
                wanted=f"at most {gate.maximum_kl:g} nats",
                found=quantity(kl.value, "nats"),
                passed=kl.value <= gate.maximum_kl,
            )
        )
    return _verdict("policy", rules, gate.waive, advice=_hardly_moved(evaluation))


def demand(verdict: GateVerdict) -> None:
    """Go on only through an open gate.

    Raises:
        GateClosedError: with each rule that was not met, and how to overrule.
    """
    if verdict.opens:
        return
    missed = "\n".join(
        f"  {rule.name}: wanted {rule.wanted}, found {rule.found}" for rule in verdict.rules if not rule.passed
    )
    raise GateClosedError(
        f"The {verdict.name.replace('_', ' ')} did not pass its gate:\n{missed}\n"
        f"{verdict.advice or 'Better data or training is the way.'}\n"
        f"To go on all the same, set gates.{verdict.name}.waive with `by` and `reason`; both will stand in the report."
    )


def _hardly_moved(evaluation: PolicyEvaluation) -> str:
    """That the policy writes what its reference writes, and what to change; empty where it does not."""
    identical = evaluation.identical_completions
    if identical is None or not identical.count or identical.value < _HARDLY_MOVED:
        return ""
    return (
        f"The policy writes exactly what its reference writes in {identical.value * identical.count:.0f} of "
        f"{identical.count:,} completions: it hardly moved. Raise train_policy.optimizer.learning_rate or "
        "train_policy.schedule.max_steps."
    )


def _verdict(name: str, rules: list[GateRule], waiver: Waiver | None, *, advice: str = "") -> GateVerdict:
    passed = bool(rules) and all(rule.passed for rule in rules)
    overruled = waiver if not passed else None
    return GateVerdict.model_validate(
        {
            "name": name,
            "passed": passed,
            "rules": tuple(rules),
            "waived_by": overruled.by if overruled else "",
            "waiver_reason": overruled.reason if overruled else "",
            "advice": advice,
        }
    )
