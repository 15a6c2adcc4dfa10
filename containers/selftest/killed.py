"""`python -m containers.selftest.killed SPEC`: a stage's own entry program, killed by SIGKILL in one of its steps.

A second process waits until a checkpoint is whole that was not there before, and then kills the first, which is the
stage, or torchrun with all ranks below it. What is left is what a power cut leaves.
"""

import os
import signal
import sys
import time
from pathlib import Path

from containers.contracts.names import CHECKPOINT_MANIFEST_FILE, CHECKPOINTS_FOLDER
from containers.contracts.spec import StageSpec
from containers.stages import entry

_LOOK_EVERY_S = 0.005


def main() -> None:
    """Start the process that kills, then become the stage."""
    spec = StageSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    checkpoints = Path(spec.work_path) / CHECKPOINTS_FOLDER
    stage = os.getpid()
    if not os.fork():
        _kill_after_checkpoint(checkpoints, stage)
    entry.leave(entry.main())


def _kill_after_checkpoint(checkpoints: Path, stage: int) -> None:
    """Kill the stage once it has saved; end with it otherwise."""
    before = _saved(checkpoints)
    while os.getppid() == stage:
        if _saved(checkpoints) - before:
            os.kill(stage, signal.SIGKILL)
            break
        time.sleep(_LOOK_EVERY_S)
    os._exit(0)


def _saved(checkpoints: Path) -> set[Path]:
    return set(checkpoints.glob(f"*/{CHECKPOINT_MANIFEST_FILE}"))


if __name__ == "__main__":
    main()
