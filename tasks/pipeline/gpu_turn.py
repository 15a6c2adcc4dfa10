"""Lease GPUs for a stage: wait until enough of them are free, and hold them while the stage works.

Runs wait in a queue: the first waits for GPUs, the others wait behind it. So a stage for many GPUs gets its turn among
many stages for one GPU. Other programs are seen by the GPU memory that they hold, and waited for too.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from containers.contracts.hardware import GpuProfile
from containers.contracts.spec import StageSpec
from containers.launch.base import GpuUnavailableError
from containers.launch.gpus.cards import Gpu, GpuReport
from containers.launch.gpus.inventory import read_gpus
from containers.launch.gpus.leases import FOLDER_VARIABLE, QUEUE, lease_folder, leased, leased_gpus, open_lease_folder
from containers.launch.gpus.verdicts import faulty, in_use, is_healthy, is_large_enough, memory_text, visible_gpus
from tasks.store.lock import WaitCancelledError, sole_worker

_ASK_EVERY_S = 1.0
# A driver takes some seconds to free the memory of a program that ended; no message is needed for that.
_SILENT_WAIT_S = 3.0
_QUEUES = "waits for GPUs before this one"
# The driver fails to answer now and then on a busy machine; one that is gone stays gone.
_PATIENCE_S = 20.0


@contextmanager
def gpu_turn(
    profile: GpuProfile,
    *,
    holder: str,
    say: Callable[[str], None],
    should_stop: Callable[[], bool],
    ours: Callable[[], Collection[int]] = tuple,
) -> Iterator[tuple[str, ...]]:
    """Hold the stage's GPUs during the block. A profile without GPUs does not wait.

    Args:
        profile: the part of the GPU profile that the stage uses.
        holder: run and stage, shown to runs that wait.
        say: gets a line if others hold the GPUs, and when that changes.
        ours: process ids of containers that this run adopts: GPUs that they use count as free, and are taken first.

    Yields:
        UUIDs of the GPUs, free when the block begins.

    Raises:
        WaitCancelledError: `should_stop` returned True during the wait.
        GpuUnavailableError: too few GPUs are usable, the driver is gone, or this user may not write leases.
    """
    if not profile.num_gpus:
        yield ()
        return
    folder = _folder()
    with ExitStack() as stack:
        with sole_worker(
            folder / QUEUE,
            holder=holder,
            say=say,
            should_stop=should_stop,
            others_do=_QUEUES,
        ):
            uuids = _wait_for_gpus(stack, profile, folder, holder=holder, say=say, should_stop=should_stop, ours=ours)
        yield uuids


def _folder() -> Path:
    try:
        return open_lease_folder()
    except OSError as error:
        raise GpuUnavailableError(
            f"The leases of the GPUs cannot be kept in {lease_folder()}: {error.strerror or error}. Let this user "
            f"write there, or set {FOLDER_VARIABLE} to a folder that all users of the GPUs may write."
        ) from error


def on_gpus(spec: StageSpec, uuids: tuple[str, ...]) -> StageSpec:
    """Return the spec with exactly these GPUs. The program checks that it got them."""
    return spec.model_copy(update={"required": spec.required.model_copy(update={"gpu_uuids": uuids})})


def _wait_for_gpus(
    stack: ExitStack,
    profile: GpuProfile,
    folder: Path,
    *,
    holder: str,
    say: Callable[[str], None],
    should_stop: Callable[[], bool],
    ours: Callable[[], Collection[int]],
) -> tuple[str, ...]:
    started, said = time.monotonic(), ""
    while True:
        usable = _usable(_read_patiently(should_stop), profile)
        kept = ours() if any(in_use(gpu) for gpu in usable) else ()
        free = _in_order([gpu for gpu in usable if in_use(gpu, ours=kept) is None])
        attempt = ExitStack()
        try:
            uuids = attempt.enter_context(
                leased([gpu.uuid for gpu in free], count=profile.num_gpus, holder=holder, folder=folder)
            )
        except OSError as error:
            raise GpuUnavailableError(
                f"A GPU lease cannot be taken: {error}. A lease is a plain file: if a link or a folder is in its "
                f"place, remove that. The leases are in {folder}."
            ) from error
        if uuids is not None:
            stack.push(attempt)
            return tuple(gpu.uuid for gpu in usable if gpu.uuid in uuids)
        attempt.close()
        if should_stop():
            raise WaitCancelledError("The run was cancelled while it waited for GPUs.")
        held = leased_gpus([gpu.uuid for gpu in usable], folder=folder)
        reason = _why_it_waits(usable, held, kept)
        if reason != said and (held or time.monotonic() - started > _SILENT_WAIT_S):
            said = reason
            say(f"{reason}; waiting for {profile.num_gpus} of the GPUs.")
        time.sleep(_ASK_EVERY_S)


def _read_patiently(should_stop: Callable[[], bool]) -> GpuReport:
    """Return the report of the GPUs. If the driver does not answer, try again for `_PATIENCE_S`."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        report = read_gpus()
        if not report.problem:
            return report
        if time.monotonic() > deadline or should_stop():
            raise GpuUnavailableError(
                f"The GPUs were there when the run was checked, but are not available now: {report.problem}. "
                f"{report.advice}"
            )
        time.sleep(_ASK_EVERY_S)


def _usable(report: GpuReport, profile: GpuProfile) -> list[Gpu]:
    """Return the usable GPUs, free or not.

    Raises:
        GpuUnavailableError: they are fewer than the profile needs.
    """
    visible = visible_gpus(report.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    usable, reasons = [], []
    for gpu in visible:
        trouble = faulty(gpu)
        # A card of unknown size is used where the profile was named for it; `auto` never chooses one.
        is_small = gpu.memory_total_mib is not None and not is_large_enough(gpu, profile.gpu_memory_gib)
        if trouble is None and is_small:
            trouble = (f"GPU {gpu.index}: {memory_text(gpu)}", "")
        if trouble is None and gpu.mig and profile.num_gpus > 1:
            trouble = (f"GPU {gpu.index}: MIG is on", "")
        if trouble is None:
            usable.append(gpu)
        else:
            reasons.append(trouble[0])
    if len(usable) < profile.num_gpus:
        others = f" ({'; '.join(reasons)})" if reasons else ""
        raise GpuUnavailableError(
            f"Profile {profile.name} asks for {profile.num_gpus} GPUs of {profile.gpu_memory_gib:g} GiB, but only "
            f"{len(usable)} of the {len(visible)} visible can be used{others}. Choose a profile with fewer GPUs, "
            "or repair the others."
        )
    return usable


def _in_order(free: list[Gpu]) -> list[Gpu]:
    """Sort free GPUs: first those that our own container uses, then healthy ones of known size, then by index."""
    return sorted(
        free, key=lambda gpu: (not gpu.processes, not is_healthy(gpu), gpu.memory_total_mib is None, gpu.index)
    )


def _why_it_waits(usable: list[Gpu], held: Mapping[str, str], kept: Collection[int]) -> str:
    """Text on what holds the GPUs: runs of this project by name, other programs by their memory."""
    runs: dict[str, list[int]] = {}
    for gpu in usable:
        if gpu.uuid in held:
            runs.setdefault(held[gpu.uuid], []).append(gpu.index)
    parts = [f"{name} has GPU {', '.join(map(str, indices))}" for name, indices in runs.items()]
    parts += [trouble[0] for gpu in usable if gpu.uuid not in held and (trouble := in_use(gpu, ours=kept)) is not None]
    return "; ".join(parts) or "The GPUs were taken just now"
