"""A function of the user's own, in processes without the stage's variables, with limits."""

from pathlib import Path

from containers.contracts.configs.parts.rewards import PythonTerm
from containers.harness.context import StageContext
from containers.rewards.base import Answered, Reward, Rewarding
from containers.rewards.processes.reward import WorkerReward
from containers.rewards.processes.workers import Workers


def start(context: StageContext, config: Rewarding, term: PythonTerm) -> Reward:
    """Start the processes with the code that the configuration carries.

    Raises:
        BadConfigError: the code cannot be loaded, or has no such function.
    """
    code = {"code": term.code, "file": Path(term.file).name, "function": term.function}
    workers = Workers(term.name, None, code, cpu_s=term.cpu_s)
    return WorkerReward(workers, _job)


def _job(one: Answered) -> dict[str, object]:
    return {
        "prompt": [dict(turn) for turn in one.conversation],
        "completion": one.text,
        "answer": one.answer,
        "columns": dict(one.columns),
    }
