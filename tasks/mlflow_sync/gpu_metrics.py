"""Sample the GPUs while a stage works, as MLflow's system metrics. This runs outside the stage's container."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from containers.launch.gpus.cards import GpuState
from containers.launch.gpus.inventory import read_states
from tasks.store.events import MetricPoint

SAMPLE_EVERY_S = 10.0
# MLflow shows keys with this prefix on a separate page.
_PREFIX = "system/gpu_"
_MB_PER_MIB = 1.048576


@contextmanager
def gpus_watched(
    uuids: Collection[str],
    *,
    on_points: Callable[[tuple[MetricPoint, ...]], None],
    say: Callable[[str], None],
    interval_s: float = SAMPLE_EVERY_S,
) -> Iterator[None]:
    """Sample these GPUs during the block, and report new problems of a GPU.

    A separate thread takes the samples: the driver can take seconds, or hang. Without GPUs there is no thread.

    Args:
        on_points: gets the points of each sample; called from that thread.
        say: gets a line when a GPU begins to throttle, or counts a new memory error.
    """
    if not uuids:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(frozenset(uuids), on_points, say, interval_s, over), name="gpu-metrics", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=interval_s)


def _watch(
    uuids: frozenset[str],
    on_points: Callable[[tuple[MetricPoint, ...]], None],
    say: Callable[[str], None],
    interval_s: float,
    over: threading.Event,
) -> None:
    step = 0
    before: dict[str, GpuState] = {}
    while True:
        states = {state.uuid: state for state in read_states() if state.uuid in uuids}
        if over.is_set():  # the driver may take seconds
            return
        now_ms = int(time.time() * 1000)
        points = tuple(point for state in states.values() for point in _points(state, step=step, timestamp_ms=now_ms))
        if points:
            on_points(points)
            step += 1
        for uuid, state in states.items():
            for trouble in _new_troubles(before.get(uuid), state):
                say(trouble)
        before |= states
        if over.wait(timeout=interval_s):
            return


def _points(state: GpuState, *, step: int, timestamp_ms: int) -> Iterator[MetricPoint]:
    used, total = state.memory_used_mib, state.memory_total_mib
    figures = {
        "utilization_percentage": state.utilization_percent,
        "memory_usage_megabytes": None if used is None else used * _MB_PER_MIB,
        "memory_usage_percentage": None if used is None or not total else 100 * used / total,
        "power_usage_watts": state.power_w,
        "temperature_celsius": state.temperature_c,
        "uncorrected_ecc_errors": state.ecc_uncorrected,
    }
    for name, value in figures.items():
        if value is not None:
            yield MetricPoint(f"{_PREFIX}{state.index}_{name}", value, timestamp_ms, step)


def _new_troubles(before: GpuState | None, now: GpuState) -> Iterator[str]:
    """Yield the problems that began since the previous sample."""
    known = () if before is None else before.throttled
    for reason in now.throttled:
        if reason not in known:
            yield f"GPU {now.index} runs slower than it could: {reason}."
    errors = now.ecc_uncorrected or 0
    if before is not None and errors > (before.ecc_uncorrected or 0):
        yield (
            f"GPU {now.index} counts {errors:g} uncorrected ECC errors, more than when the stage started: its results "
            "may be wrong."
        )
