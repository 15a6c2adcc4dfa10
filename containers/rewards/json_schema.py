"""Whether a completion is JSON of a schema; in a process, since a schema may have patterns."""

from containers.contracts.configs.parts.rewards import JsonSchemaTerm
from containers.harness.context import StageContext
from containers.rewards.base import Reward, Rewarding
from containers.rewards.processes.reward import WorkerReward
from containers.rewards.processes.verifiers import is_json_of
from containers.rewards.processes.workers import Workers


def start(context: StageContext, config: Rewarding, term: JsonSchemaTerm) -> Reward:
    """Start the processes.

    Raises:
        BadConfigError: it is no JSON Schema.
    """
    return WorkerReward(Workers(term.name, is_json_of, term.json_schema, cpu_s=term.cpu_s), lambda one: one.text)
