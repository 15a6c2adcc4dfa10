"""Whether a gate lets the pipeline go on: its rules, and where a person was asked, that person's word."""

from containers.contracts.records import GateVerdict
from tasks.gates import PolicyGate, RewardModelGate, demand
from tasks.pipeline_run import PipelineRun


def opened(run: PipelineRun, verdict: GateVerdict, gate: RewardModelGate | PolicyGate) -> GateVerdict:
    """The verdict, where it lets the pipeline go on.

    Raises:
        GateClosedError: it does not.
    """
    demand(verdict)
    return verdict
