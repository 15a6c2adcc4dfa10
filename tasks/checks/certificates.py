"""Whether a reward model from elsewhere has the certificate that the run's own must earn."""

from functools import partial

from containers.contracts.configs.parts.judges import OtherRewardModel
from containers.contracts.configs.parts.rewards import FurtherRewardModel
from containers.contracts.records import CheckFinding
from tasks.config.gates import RewardModelGate
from tasks.pipeline.further_reward_models import certificate_file, verdict_on
from tasks.sources.errors import SourceError


def judge_certificate_finding(judge: OtherRewardModel) -> CheckFinding:
    """Whether the certificate that a judge names can be found."""
    row = partial(CheckFinding, name=f"certificate of {judge.name}", wanted="a certificate")
    try:
        file = certificate_file(judge.certificate or "")
    except SourceError as error:
        return row(found=error.problem, verdict="failure", advice=error.advice)
    return row(found=str(file), verdict="ok")


def certificate_finding(model: FurtherRewardModel, gate: RewardModelGate, *, number: int) -> CheckFinding:
    """Whether a further reward model passes the gate; `number` names it, the run's own is the first."""
    row = partial(CheckFinding, name=f"its certificate ({number})", wanted="passes gates.reward_model")
    try:
        verdict = verdict_on(model, gate)
    except SourceError as error:
        return row(found=error.problem, verdict="failure", advice=error.advice)
    missed = "; ".join(f"{rule.name} {rule.found}, wanted {rule.wanted}" for rule in verdict.rules if not rule.passed)
    if verdict.passed:
        return row(found=f"passes {len(verdict.rules)} rules", verdict="ok")
    if gate.waive is not None:
        said = f"missed, and waived by {gate.waive.by}: {missed}"
        return row(found=said, verdict="warning", advice=gate.waive.reason)
    return row(found=missed, verdict="failure", advice="Leave that model out, or waive the gate with a reason.")
