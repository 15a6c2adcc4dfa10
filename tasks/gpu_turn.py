"""One stage at a time has the GPUs of this machine, over all runs of one user: the next waits, and says behind whom.

The lock is the kernel's and ends with its holder. Other users, and programs that are not ours, are seen by the system
check alone.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from containers.contracts.hardware import GpuProfile
from tasks.stage_lock import sole_worker


@contextmanager
def gpu_turn(
    profile: GpuProfile, *, holder: str, say: Callable[[str], None], should_stop: Callable[[], bool]
) -> Iterator[None]:
    """Have the GPUs for the time of the block; a profile without GPUs waits for nobody.

    Args:
        profile: the part of the GPU profile that the stage uses.
        holder: who this is, for those who wait.
        say: gets one line where another has them.

    Raises:
        WaitCancelledError: `should_stop` said so while another had them.
    """
    if not profile.num_gpus:
        yield
        return
    with sole_worker(turn_folder() / "gpus", holder=holder, say=say, should_stop=should_stop, others_do="has the GPUs"):
        yield


def turn_folder() -> Path:
    """Where the lock lies: the same for all runs of this user on this machine."""
    return Path(tempfile.gettempdir()) / f"rlhf-flows-{os.getuid()}"
