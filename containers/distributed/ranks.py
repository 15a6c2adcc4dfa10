"""The ranks of a stage: join them, exchange values, and spread work over them."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from containers.contracts.digests import write_atomically
from containers.contracts.hardware import COLLECTIVES_FILE, Collectives
from containers.distributed.devices import compute_device
from containers.distributed.probe import measure_collectives
from containers.formatting import size
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError

Item = TypeVar("Item")
Value = TypeVar("Value")

# `_left_groups` keeps groups that were left, so that no wrapper of a model (DDP's reducer) is the last to hold one. The
# group's end would wait for gloo's threads with the interpreter locked, while a thread that still frees a tensor
# waits for the interpreter: a deadlock in 2 of 47 trainings of two ranks on two busy cores (torch 2.13).
_PATIENCE = timedelta(days=7)
_left_groups: list[distributed.ProcessGroup | None] = []


def join_ranks(context: StageContext) -> None:
    """Join this process with the planned ranks that torchrun started, and test their connections.

    Without this, ranks on a CPU would train alone, all into the same folder, and exit with 0. The Trainer would also
    ignore the collective time-out there.

    Raises:
        MissingPrerequisiteError: torchrun started another number of ranks than the batch plan has.
        StageError: the ranks do not reach each other; see `probe`.
    """
    wanted, found = context.spec.batch.num_processes, int(os.environ.get("WORLD_SIZE", "1"))
    if wanted != found:
        raise MissingPrerequisiteError(
            f"The batch plan has {wanted} ranks, this process is one of {found}. "
            f"Start the stage through its entry program, which starts torchrun if several ranks are planned."
        )
    device = compute_device(context.spec.profile)
    if found == 1 or distributed.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=context.spec.profile.collective_timeout_s)
    distributed.init_process_group(_backend(context, device), timeout=timeout)
    measured = measure_collectives(context.spec.profile, device)
    if is_first_rank():
        write_atomically(context.work / COLLECTIVES_FILE, measured.model_dump_json(indent=2))
        context.recorder.note(collectives_text(measured))


def _backend(context: StageContext, device: torch.device) -> str:
    """Name the backend; an optimizer whose weights lie in host memory needs one for these too."""
    if device.type != "cuda":
        return "gloo"
    offloads = getattr(getattr(context.spec.config, "optimizer", None), "offload", False)
    return "cpu:gloo,cuda:nccl" if offloads else "nccl"


def collectives_text(measured: Collectives) -> str:
    """Return `2 ranks over gloo: 25.0 MiB in 66 ms (379 MiB/s on the bus); shared memory 0 bytes of 64.0 MiB.`"""
    largest = measured.sizes[-1]
    ways = f" ({', '.join(measured.transports)})" if measured.transports else ""
    return (
        f"{measured.num_processes} ranks over {measured.backend}{ways}: {size(largest.size_bytes)} in "
        f"{1000 * largest.median_s:.3g} ms ({size(int(largest.bus_bytes_per_s))}/s on the bus); "
        f"shared memory {size(measured.shm_used_bytes)} of {size(measured.shm_total_bytes)}."
    )


def leave_ranks() -> bool:
    """End the ranks' common work: wait for every rank, then destroy the process group. Does nothing for one rank.

    If a process ends without this, gloo's threads may abort it while Python shuts down (4 of 25 ends of two idle ranks,
    torch 2.13: `terminate called without an active exception`), and torchrun then fails the whole stage. Call it before
    the first rank saves: otherwise the others would wait for it, and fail after the collective time-out.

    Returns:
        Whether this is the first rank, which writes outputs. Afterwards `is_first_rank` is true on each rank.
    """
    is_first = is_first_rank()
    if distributed.is_initialized():
        distributed.barrier()
        _left_groups.append(distributed.group.WORLD)
        distributed.destroy_process_group()
    return is_first


def own_rank() -> int:
    """Return the number of this rank, from 0."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def is_first_rank() -> bool:
    """Whether this rank writes outputs."""
    return own_rank() == 0


def any_rank(claim: bool) -> bool:
    """Whether the claim holds on any rank; the same answer on every rank. All ranks must call it."""
    return bool(highest_of_ranks(int(claim)))


def highest_of_ranks(number: int) -> int:
    """Return the highest of the ranks' numbers; the same answer on every rank. All ranks must call it."""
    if not distributed.is_initialized():
        return number
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in distributed.get_backend() else "cpu"
    told = torch.tensor(number, device=device)
    distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
    return int(told.item())


def spread_over_ranks(items: Sequence[Item], work: Callable[[list[Item]], list[Value]]) -> list[Value]:
    """Return the values of `work` for all items, in order, on every rank; each rank works on every n-th item."""
    if not distributed.is_initialized():
        return work(list(items))
    num_ranks = distributed.get_world_size()
    parts = of_all_ranks(work(list(items[distributed.get_rank() :: num_ranks])))
    return [parts[index % num_ranks][index // num_ranks] for index in range(len(items))]


def of_all_ranks(value: Value, *, group: distributed.ProcessGroup | None = None) -> list[Value]:
    """Return each rank's value, in order of the ranks, on every rank. All ranks must call it.

    Args:
        group: a group of all ranks; None: the one that they joined, with its time-out.
    """
    if not distributed.is_initialized():
        return [value]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value, group=group)
    return found


def patient_group() -> distributed.ProcessGroup | None:
    """Return a group in which all ranks can wait for one of them, for hours if needed; None with one rank.

    The collective time-out is for ranks that compute the same; it would treat a rank that loads a large model, or waits
    for another program, as lost. The stage's time-out and silence limit bound the waiting. All ranks must call it.
    """
    if not distributed.is_initialized():
        return None
    group: distributed.ProcessGroup = distributed.new_group(backend="gloo", timeout=_PATIENCE)
    _left_groups.append(group)
    return group
