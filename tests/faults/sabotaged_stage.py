"""The stage program with one thing going wrong: `python sabotaged_stage.py WHAT STEP SPEC …`.

WHAT is a point in the save of the checkpoint of STEP at which the process kills itself; or `nan`: the loss of STEP is
not a number; or `gil`, `loader`: STEP never ends, as the interpreter is locked, or the data do not come; or `hold`: the
process stops itself (SIGSTOP) when its output is written and its manifest is not; or `none`. Nothing else is changed;
the entry program does the rest, for one spec after another.
"""

import ctypes
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import transformers
import trl

from containers.contracts.names import MANIFEST_FILE
from containers.stages import entry
from containers.training import checkpoints


def die() -> None:
    """`kill -9` of this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, step: int, act: Any) -> None:
    """Call `act(self, *arguments)` before a method of the Trainer, in the save of that step."""
    method = getattr(owner, name)

    def sabotaged(self: Any, *arguments: Any, **rest: Any) -> Any:
        if self.state.global_step == step:
            act(self, *arguments)
        return method(self, *arguments, **rest)

    setattr(owner, name, sabotaged)


def in_model(step: int) -> None:
    def half_a_model(trainer: Any, folder: str, *_: Any) -> None:
        Path(folder).mkdir()
        (Path(folder) / "adapter_model.safetensors").write_bytes(b"half")
        die()

    before(transformers.Trainer, "save_model", step, half_a_model)


def before_optimizer(step: int) -> None:
    before(transformers.Trainer, "_save_optimizer_and_scheduler", step, lambda *_: die())


def before_manifest(step: int) -> None:
    write = checkpoints.write_checkpoint_manifest

    def sabotaged(checkpoint: Path, **rest: Any) -> None:
        if checkpoint.name == f"checkpoint-{step}":
            die()
        write(checkpoint, **rest)

    checkpoints.write_checkpoint_manifest = sabotaged


def in_pruning(step: int) -> None:
    delete = shutil.rmtree

    def sabotaged(path: Path, **rest: Any) -> None:
        if (path.parent / f"checkpoint-{step}").exists() and path.is_dir():
            next(file for file in path.iterdir() if file.is_file()).unlink()
            die()
        delete(path, **rest)

    checkpoints.shutil.rmtree = sabotaged  # type: ignore[assignment]


def nan(step: int) -> None:
    compute = trl.RewardTrainer.compute_loss

    def sabotaged(self: Any, *arguments: Any, **rest: Any) -> Any:
        found = compute(self, *arguments, **rest)
        if not self.model.training or self.state.global_step != step - 1:
            return found
        return (found[0] * float("nan"), *found[1:]) if isinstance(found, tuple) else found * float("nan")

    trl.RewardTrainer.compute_loss = sabotaged


def in_step(step: int, act: Any) -> None:
    """Call `act()` in the forward pass of that step."""
    compute = trl.RewardTrainer.compute_loss

    def sabotaged(self: Any, *arguments: Any, **rest: Any) -> Any:
        if self.model.training and self.state.global_step == step - 1:
            act()
        return compute(self, *arguments, **rest)

    trl.RewardTrainer.compute_loss = sabotaged


def hold_the_gil() -> None:
    """Calls into C that never give the interpreter back; a signal ends one of them."""
    while True:
        ctypes.PyDLL(None).sleep(100_000)


def wait_for_ever() -> None:
    """What a data loader does whose worker is stuck."""
    threading.Event().wait()


def hold(_: int) -> None:
    write = entry.write_atomically

    def sabotaged(path: Path, text: str) -> None:
        if path.name == MANIFEST_FILE:
            os.kill(os.getpid(), signal.SIGSTOP)
        write(path, text)

    entry.write_atomically = sabotaged


SABOTAGE = {
    "model": in_model,
    "optimizer": before_optimizer,
    "manifest": before_manifest,
    "pruning": in_pruning,
    "nan": nan,
    "gil": lambda step: in_step(step, hold_the_gil),
    "loader": lambda step: in_step(step, wait_for_ever),
    "hold": hold,
}

if __name__ == "__main__":
    what, step, *specs = sys.argv[1:]
    if what != "none":
        SABOTAGE[what](int(step))
    sys.exit(max([entry.main([spec]) for spec in specs]))
