"""A program on one GPU of an evaluation; `containers.distributed.spread` starts it and speaks to it by a pipe.

The first message says what to make, and with which others; each further one what to do with it. It ends when the pipe
is closed.
"""

import ctypes
import logging
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

DONE, REFUSED, FAILED, FULL = "done", "refused", "failed", "full"
# For one collective of a team, whose members get the same work at the same time.
_COLLECTIVE_S = 600
_DIE_WITH_PARENT = 1  # of prctl(2)


@dataclass(frozen=True)
class Membership:
    """A program's place in a team.

    Attributes:
        store: file at which the members meet.
    """

    store: str
    rank: int
    size: int


def serve(connection: Connection) -> None:
    """Answer messages until the pipe is closed."""
    import torch

    from containers.harness.errors import StageError

    made: Any = None
    is_made = False
    while True:
        try:
            task, given, *member = connection.recv()
        except EOFError:
            return
        try:
            if is_made:
                answer = (DONE, task(made, given))
            else:
                device = "cuda" if torch.cuda.is_available() else "cpu"
                join(*member, device=device)
                made, is_made, answer = task(**given, device=device), True, (DONE, None)
        except torch.OutOfMemoryError as error:
            answer = (FULL, str(error))
        except StageError as error:
            answer = (REFUSED, error)
        except Exception as error:
            traceback.print_exc()
            answer = (FAILED, f"{type(error).__name__}: {error}")
        connection.send(answer)


def join(member: Membership | None, *, device: str) -> None:
    """Meet the others of the team; alone, do nothing."""
    if member is None:
        return
    from torch import distributed

    # transformers reads them. A program sees its own GPU only, which is its first.
    os.environ |= {"RANK": str(member.rank), "WORLD_SIZE": str(member.size), "LOCAL_RANK": "0"}
    if device == "cpu":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{member.store}",
        rank=member.rank,
        world_size=member.size,
        timeout=timedelta(seconds=_COLLECTIVE_S),
    )


if __name__ == "__main__":
    # SIGTERM goes to all processes of a stage; the stage decides when this one ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A member of a team may wait for others when the stage is gone, and would not notice that its pipe is closed.
    ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    logging.disable(logging.WARNING)
    serve(Connection(int(sys.argv[1])))
