"""Whether a completion has a match of a pattern; in a process, since a pattern may need years for some texts."""

from containers.contracts.configs.parts.rewards import RegexTerm
from containers.harness.context import StageContext
from containers.rewards.base import Reward, Rewarding
from containers.rewards.processes.reward import WorkerReward
from containers.rewards.processes.verifiers import matches
from containers.rewards.processes.workers import Workers


def start(context: StageContext, config: Rewarding, term: RegexTerm) -> Reward:
    """Start the processes."""
    settings = {"pattern": term.pattern, "whole": term.whole}
    return WorkerReward(Workers(term.name, matches, settings, cpu_s=term.cpu_s), lambda one: one.text)
