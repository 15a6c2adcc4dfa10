"""The stage program on a machine that is too small: `python too_small_machine.py WHAT ROOM STEP SPEC`.

WHAT is `gpu_memory`: from STEP on, a forward pass that trains on more than ROOM examples (twice as many with gradient
checkpointing) ends as on a full GPU; or `shared_memory`: before it begins, the program takes ROOM MiB of /dev/shm as
data loaders do; or `ranks`: in STEP, of more than ROOM ranks, the last one hangs (SIGSTOP).
"""

import os
import signal
import sys
from typing import Any

import torch
import trl

from containers.algorithms.policy_trainer import PolicyTrainer
from containers.stages import entry

EXEC = os.execv
_HELD: list[torch.Tensor] = []


def on_each_step(act: Any) -> None:
    """Call `act(trainer, inputs)` in every forward pass that trains."""
    for owner, name in (
        (trl.RewardTrainer, "compute_loss"),
        (trl.SFTTrainer, "compute_loss"),
    ):
        method = getattr(owner, name)

        def sabotaged(self: Any, model: Any, inputs: Any, *rest: Any, _method: Any = method, **named: Any) -> Any:
            if self.model.training:
                act(self, inputs)
            return _method(self, model, inputs, *rest, **named)

        setattr(owner, name, sabotaged)
    step = PolicyTrainer.training_step

    def sabotaged_step(self: PolicyTrainer, *arguments: Any, **named: Any) -> Any:
        rows = getattr(self.step.cut, "keywords", {}).get("at_a_time", self.rollouts.rows_per_rank)
        act(self, {"row_ids": range(rows)})
        return step(self, *arguments, **named)

    PolicyTrainer.training_step = sabotaged_step  # type: ignore[method-assign]


def gpu_memory(room: int, step: int) -> None:
    def allocate(trainer: Any, inputs: dict[str, Any]) -> None:
        rows = next(len(value) for name, value in inputs.items() if name.endswith("ids"))
        examples = rows // 2 if isinstance(trainer, trl.RewardTrainer) else rows
        checkpoints = trainer.args.gradient_checkpointing or trainer.args.activation_checkpointing
        needed = examples if checkpoints else 2 * examples
        if trainer.state.global_step >= step - 1 and needed > room:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
            )

    on_each_step(allocate)


def shared_memory(room: int, _: int) -> None:
    _HELD.append(torch.zeros(room * 1024**2, dtype=torch.uint8).share_memory_())


def ranks(room: int, step: int) -> None:
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))

    def hang(trainer: Any, inputs: dict[str, Any]) -> None:
        if size > room and rank == size - 1 and trainer.state.global_step == step - 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    on_each_step(hang)


def become_torchrun(program: str, command: list[str]) -> None:
    """As the entry program does it, with this program in its place."""
    place = command.index("containers.stages.entry")
    EXEC(program, [*command[: place - 1], __file__, *sys.argv[1:4], *command[place + 1 :]])


MACHINES = {"gpu_memory": gpu_memory, "shared_memory": shared_memory, "ranks": ranks}

if __name__ == "__main__":
    what, room, step, spec = sys.argv[1:]
    os.execv = become_torchrun
    MACHINES[what](int(room), int(step))
    sys.exit(entry.main([spec]))
