"""A program on one GPU of an evaluation; `containers.distributed.spread` starts it and speaks to it by a pipe.

The first message says what to make, and with which others; each further one what to do with it. It ends when the pipe
is closed.
"""

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

DONE, REFUSED, FAILED, FULL = "done", "refused", "failed", "full"
# Until the members of a team have added up a number. Each has started by then.
_CONNECT_S = 180
_DIE_WITH_PARENT = 1  # of prctl(2)


@dataclass(frozen=True)
class Membership:
    """A program's place in a team.

    Attributes:
        store: file at which the members meet.
        limit_s: for one collective; the members get the same work at the same time.
        advice: the setting to change if they do not reach each other.
    """

    store: str
    rank: int
    size: int
    limit_s: int
    advice: str


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
                join(*member, device=device, connection=connection)
                made, is_made, answer = task(**given, device=device), True, (DONE, None)
        except torch.OutOfMemoryError as error:
            answer = (FULL, str(error))
        except StageError as error:
            answer = (REFUSED, error)
        except Exception as error:
            traceback.print_exc()
            answer = (FAILED, f"{type(error).__name__}: {error}")
        connection.send(answer)


def join(member: Membership | None, *, device: str, connection: Connection) -> None:
    """Meet the others of the team, and add up a number with them; alone, do nothing.

    Ends the process if that takes too long, for nothing inside it can be interrupted.
    """
    if member is None:
        return
    import torch
    from torch import distributed

    from containers.harness.errors import StageError

    # transformers reads them. A program sees its own GPU only, which is its first.
    os.environ |= {"RANK": str(member.rank), "WORLD_SIZE": str(member.size), "LOCAL_RANK": "0"}
    if device == "cpu":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    def give_up() -> None:
        what = f"{member.size} programs that are to hold a model together could not add up a number in {_CONNECT_S} s"
        connection.send((REFUSED, StageError(f"{what}: {member.advice}.")))
        os._exit(1)

    timer = threading.Timer(_CONNECT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"file://{member.store}",
            rank=member.rank,
            world_size=member.size,
            timeout=timedelta(seconds=member.limit_s),
        )
        found = torch.ones(1, device=device)
        distributed.all_reduce(found)
        added = found.item()
    finally:
        timer.cancel()
    if added != member.size:
        raise StageError(f"{member.size} programs added up ones to {added:g}: {member.advice}.")


if __name__ == "__main__":
    # SIGTERM goes to all processes of a stage; the stage decides when this one ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A member of a team may wait for others when the stage is gone, and would not notice that its pipe is closed.
    ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    # As the stage's program: where it hangs, its stacks go to the log.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.disable(logging.WARNING)
    serve(Connection(int(sys.argv[1])))
