"""The stage program, killed by itself at one moment: python -m benchmarks.killed_stage MOMENT STEP SPEC

MOMENT is in `MOMENTS`; nothing but the kill (SIGKILL, which no code can catch) differs from `containers.stages.entry`.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers

from containers.algorithms.offline_trainer import OfflineTrainer
from containers.algorithms.policy_rollouts import PolicyRollouts
from containers.algorithms.policy_trainer import PolicyTrainer
from containers.contracts.names import MANIFEST_FILE
from containers.critics.critic import Critic
from containers.evidence.looks import HeldOut
from containers.rewards.policy_reward import PolicyReward
from containers.stages import entry
from containers.training import checkpoints


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _after(owner: Any, name: str, is_time: Callable[[Any], bool]) -> None:
    """Die when the method has done its work, if `is_time(self)`."""
    method = getattr(owner, name)

    def killed(self: Any, *arguments: Any, **rest: Any) -> Any:
        found = method(self, *arguments, **rest)
        if is_time(self):
            _die()
        return found

    setattr(owner, name, killed)


def _nth(number: int) -> Callable[[Any], bool]:
    """Whether it is the call of that number, counted from 1."""
    calls = 0

    def is_time(_: Any) -> bool:
        nonlocal calls
        calls += 1
        return calls == number

    return is_time


def _in_rollout(number: int) -> None:
    """Completions are written, and nothing is learnt of them."""
    _after(PolicyRollouts, "written", _nth(number))


def _in_scoring(number: int) -> None:
    """Completions have their rewards."""
    _after(PolicyReward, "scored", _nth(number))


def _in_critic(number: int) -> None:
    """The critic has learnt, and the policy has not."""
    _after(Critic, "learn", _nth(number))


def _in_look(number: int) -> None:
    """A judge has looked at the policy, and nothing has followed from it."""
    _after(HeldOut, "compare", _nth(number))


def _in_step(step: int) -> None:
    """Gradients are there, and no weight has changed."""
    for trainer in (OfflineTrainer, PolicyTrainer):
        _after(trainer, "training_step", lambda own: own.state.global_step == step - 1)


def _in_evaluation(step: int) -> None:
    """The validation rows are computed, and what follows from them is not saved."""
    _after(OfflineTrainer, "evaluate", lambda own: own.state.global_step == step)


def _in_save(step: int) -> None:
    """The model's file of the checkpoint is written, the optimizer's is not."""
    _after(transformers.Trainer, "save_model", lambda own: own.state.global_step == step)


def _before_manifest(step: int) -> None:
    """Every file of the checkpoint is written but the manifest that makes it count."""
    write = checkpoints.write_checkpoint_manifest

    def killed(checkpoint: Path, **rest: Any) -> None:
        if checkpoint.name == f"checkpoint-{step}":
            _die()
        write(checkpoint, **rest)

    checkpoints.write_checkpoint_manifest = killed


def _before_the_end(_: int) -> None:
    """Every file of the artifact is written but the manifest that makes it count."""
    write = vars(entry)["write_atomically"]

    def killed(path: Path, text: str) -> None:
        if path.name == MANIFEST_FILE:
            _die()
        write(path, text)

    vars(entry)["write_atomically"] = killed


MOMENTS: dict[str, Callable[[int], None]] = {
    "rollout": _in_rollout,
    "scoring": _in_scoring,
    "critic": _in_critic,
    "look": _in_look,
    "step": _in_step,
    "evaluation": _in_evaluation,
    "save": _in_save,
    "manifest": _before_manifest,
    "end": _before_the_end,
}

if __name__ == "__main__":
    moment, number, spec = sys.argv[1:]
    MOMENTS[moment](int(number))
    sys.exit(entry.main([spec]))
