"""The ranks of a stage: joined as planned, waited for, and given their share of the work."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from containers.stages.context import StageContext
from containers.stages.errors import MissingPrerequisiteError
from containers.stages.models import compute_device

Item = TypeVar("Item")
Value = TypeVar("Value")


def join_ranks(context: StageContext) -> None:
    """Join this process with the other ranks that torchrun started, and check that they are as many as planned.

    Without this, ranks on a CPU train alone, each into the same folder, and exit with 0; and the Trainer ignores the
    collective time-out there.

    Raises:
        MissingPrerequisiteError: another number of ranks than the batch plan has.
    """
    wanted, found = context.spec.batch.num_processes, int(os.environ.get("WORLD_SIZE", "1"))
    if wanted != found:
        raise MissingPrerequisiteError(
            f"The batch plan has {wanted} ranks, this process is one of {found}. "
            f"Start the stage through its entry program, which starts torchrun where several ranks are planned."
        )
    device = compute_device(context.spec.profile)
    if found > 1 and device.type == "cpu" and not distributed.is_initialized():
        timeout = timedelta(seconds=context.spec.profile.collective_timeout_s)
        distributed.init_process_group("gloo", timeout=timeout)


def wait_for_all_ranks() -> None:
    """Return when every rank is here; at once where there is only one."""
    if distributed.is_initialized():
        distributed.barrier()


def is_first_rank() -> bool:
    """Whether this rank writes outputs."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def any_rank(claim: bool) -> bool:
    """Whether the claim holds on any rank; the same answer on every rank. All of them must ask."""
    if not distributed.is_initialized():
        return claim
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in distributed.get_backend() else "cpu"
    told = torch.tensor(int(claim), device=device)
    distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
    return bool(told.item())


def spread_over_ranks(items: Sequence[Item], work: Callable[[list[Item]], list[Value]]) -> list[Value]:
    """The values that `work` gives for all items, in order, on every rank; each rank works on every n-th item."""
    if not distributed.is_initialized():
        return work(list(items))
    num_ranks = distributed.get_world_size()
    parts: list[list[Value]] = [[] for _ in range(num_ranks)]
    distributed.all_gather_object(parts, work(list(items[distributed.get_rank() :: num_ranks])))
    return [parts[index % num_ranks][index // num_ranks] for index in range(len(items))]
