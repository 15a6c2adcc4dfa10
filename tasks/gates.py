"""Gates: the demands on a model before the pipeline goes on, and the verdict with its figures. Pure."""

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.records import GateRule, GateVerdict, PolicyEvaluation, RewardModelEvaluation
from containers.contracts.stage_configs import Fraction

_VALIDATION = "validation"


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
                wanted=f"at least {minimum:.3f}",
                found="no pair was left" if found is None else f"{found.value:.3f} on {found.count:,} pairs",
                passed=found is not None and found.value >= minimum,
            )
        )
    return _verdict("reward_model", rules, gate.waive)


def judge_policy(evaluation: PolicyEvaluation, gate: PolicyGate) -> GateVerdict:
    """The verdict on a policy: reward gain over the reference beyond its interval, and the KL where it is bounded."""
    gain, kl = evaluation.reward_difference, evaluation.kl
    low = gain.value if gain.ci_low is None else gain.ci_low
    rules = [
        GateRule(
            name="reward gain over the reference",
            wanted=f"interval above {gate.minimum_reward_gain:g}",
            found=f"{gain.value:.3f}, interval from {low:.3f} ({gain.count or 0:,} prompts)",
            passed=low > gate.minimum_reward_gain,
        )
    ]
    if gate.maximum_kl is not None:
        rules.append(
            GateRule(
                name="KL to the reference",
                wanted=f"at most {gate.maximum_kl:g} nats",
                found=f"{kl.value:.3f} nats",
                passed=kl.value <= gate.maximum_kl,
            )
        )
    return _verdict("policy", rules, gate.waive)


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
        f"Better data or training is the way. To go on all the same, set gates.{verdict.name}.waive with `by` and "
        f"`reason`; both will stand in the report."
    )


def _verdict(name: str, rules: list[GateRule], waiver: Waiver | None) -> GateVerdict:
    passed = bool(rules) and all(rule.passed for rule in rules)
    overruled = waiver if not passed else None
    return GateVerdict.model_validate(
        {
            "name": name,
            "passed": passed,
            "rules": tuple(rules),
            "waived_by": overruled.by if overruled else "",
            "waiver_reason": overruled.reason if overruled else "",
        }
    )
