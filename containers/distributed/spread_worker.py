"""A program on one further GPU of an evaluation; `containers.distributed.spread` starts it and speaks to it by a pipe.

The first message says what to make, each further one what to do with it. It ends when the pipe is closed.
"""

import logging
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

DONE, FAILED, FULL = "done", "failed", "full"


def serve(connection: Connection) -> None:
    """Answer messages until the pipe is closed."""
    import torch

    made: Any = None
    is_made = False
    while True:
        try:
            task, given = connection.recv()
        except EOFError:
            return
        try:
            if is_made:
                answer = (DONE, task(made, given))
            else:
                device = "cuda" if torch.cuda.is_available() else "cpu"
                made, is_made, answer = task(**given, device=device), True, (DONE, None)
        except torch.OutOfMemoryError as error:
            answer = (FULL, str(error))
        except Exception as error:
            traceback.print_exc()
            answer = (FAILED, f"{type(error).__name__}: {error}")
        connection.send(answer)


if __name__ == "__main__":
    # SIGTERM goes to all processes of a stage; the stage decides when this one ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.disable(logging.WARNING)
    serve(Connection(int(sys.argv[1])))
