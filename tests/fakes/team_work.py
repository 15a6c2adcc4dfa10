"""What members of a team do in tests; they import it by its name, so it is no part of a test module."""

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from torch import distributed

from containers.distributed import spread_worker
from containers.distributed.spread_worker import Membership
from containers.models.tensor_parallel import share_of_weight


def numbers_held(model: Any, asked: list[int]) -> list[int]:
    """Weights that this program holds."""
    return [sum(share_of_weight(weight).numel() for weight in model.parameters()) for _ in asked]


def fails_in_one(model: Any, asked: list[int]) -> list[int]:
    """The second member fails, the first one waits for it."""
    if distributed.get_rank() == 1:
        raise ValueError("unlucky")
    distributed.barrier()
    return asked


def dies_in_one(model: Any, asked: list[int]) -> list[int]:
    """The second member dies."""
    if distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()
    return asked


def join_alone(member: Membership, connection: Connection) -> None:
    """Join a team whose other member never comes, with a limit of a second."""
    spread_worker._CONNECT_S = 1
    spread_worker.join(member, device="cpu", connection=connection)
