"""One to four ranks that hear no signal (a hung collective, a held interpreter), and whatever ends their stage."""

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from contained import STAGE_IMAGE
from fault_rows import Fault

from containers.contracts.hardware import BatchPlan
from containers.launch.arguments import docker_command
from containers.launch.base import StageExit, StageRuntime
from containers.launch.docker.runtime import DockerRuntime
from containers.launch.leftovers import folder_token, processes_with
from containers.launch.process import ProcessRuntime
from containers.launch.supervise import STACKS_PER_RANK_S, STACKS_S
from tests.unit.factories.launch_factory import Watcher, make_launch, make_profile, make_spec

pytestmark = [pytest.mark.slow, pytest.mark.stages]

HUNG_RANKS = Path(__file__).parents[1] / "hung_ranks.py"
GRACE_S = 3.0
# The host's own time to remove a container, or to see that processes are gone.
AFTER_GRACE_S = 5.0
# From the start of the interpreters to ranks that are up, on a busy machine with two cores.
STARTS_WITHIN_S = 300.0
NUM_RANKS = (1, 2, 3, 4)


def process_runtime(num_ranks: int) -> StageRuntime:
    command = (sys.executable, "-c", HUNG_RANKS.read_text(), str(num_ranks))
    return ProcessRuntime(command=command, stop_grace_s=GRACE_S)


def docker_runtime(num_ranks: int) -> StageRuntime:
    supervisor = docker_command()[: docker_command().index("--") + 1]
    command = (*supervisor, "python", "-c", HUNG_RANKS.read_text(), str(num_ranks))
    return DockerRuntime(command=command, stop_grace_s=GRACE_S)


RUNTIMES: dict[str, Callable[[int], StageRuntime]] = {"process": process_runtime, "docker": docker_runtime}
PARTS = {"process": "supervisor, torchrun, gloo, processes", "docker": "Docker, supervisor, torchrun, gloo"}


def run_until_up(
    runtime: StageRuntime, folder: Path, num_ranks: int, *, act: Callable[[], bool] = lambda: False, **changes: Any
) -> tuple[StageExit, float]:
    """Run hung ranks. Returns their end, and how long after the first look at which all ranks were up it came.

    Args:
        act: asked again and again once all ranks are up; True cancels.
    """
    watcher = Watcher()
    up_at: list[float] = []

    def look() -> bool:
        if not up_at and sum(bool(re.search(r"rank \d is up", line)) for line in watcher.lines) == num_ranks:
            up_at.append(time.monotonic())
            assert len(processes_with(folder_token(folder / "work"))) > 2 * num_ranks, "the token finds them"
        return bool(up_at) and act()

    spec = make_spec(
        key=f"{num_ranks}" * 64,
        runtime=runtime.name,
        profile=make_profile(num_processes=num_ranks),
        batch=BatchPlan(
            global_batch_size=num_ranks, per_device_batch_size=1, num_processes=num_ranks, gradient_accumulation_steps=1
        ),
        **{"timeout_s": STARTS_WITHIN_S, **changes},
    )
    image = STAGE_IMAGE if runtime.name == "docker" else None
    launch = make_launch(folder, spec, watcher=watcher, should_stop=look, image=image)
    stage_exit = runtime.run(launch)
    assert up_at, stage_exit.log_tail
    return stage_exit, time.monotonic() - up_at[0]


def nothing_of(folder: Path) -> bool:
    return not processes_with(folder_token(folder / "work"))


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        request.getfixturevalue("client")
    return str(request.param)


def test_blocked_ranks_are_cancelled(fault: Fault, tmp_path: Path, kind: str) -> None:
    fault.describe("crashes", "1 to 4 ranks wait for ever in C; the stage is cancelled", parts=PARTS[kind])
    took = []
    for num_ranks in NUM_RANKS:
        folder = tmp_path / str(num_ranks)
        stage_exit, ended_after_s = run_until_up(RUNTIMES[kind](num_ranks), folder, num_ranks, act=lambda: True)
        assert nothing_of(folder)
        assert stage_exit.cancelled and not stage_exit.lost
        took.append(ended_after_s)
        assert ended_after_s < GRACE_S + AFTER_GRACE_S
    fault.recovered(
        seen=f"{len(took)} of {len(NUM_RANKS)}: no process of the stage is alive when its end is told, at most "
        f"{max(took):.1f} s after the cancel (grace {GRACE_S:g} s)",
        recovery_s=max(took),
    )


def all_at_once(run: Callable[[int], float]) -> list[float]:
    """For each number of ranks, what `run` returns; these tests wait for most of their time."""
    with ThreadPoolExecutor(len(NUM_RANKS)) as pool:
        return list(pool.map(run, NUM_RANKS))


def test_blocked_ranks_are_noticed(fault: Fault, tmp_path: Path, kind: str) -> None:
    limit_s = 60.0  # the imports are silent, and slow where ten ranks start on two cores
    fault.describe("crashes", "1 to 4 ranks wait for ever in C, without a cancel", parts=PARTS[kind])

    def run(num_ranks: int) -> float:
        folder = tmp_path / str(num_ranks)
        stage_exit, ended_after_s = run_until_up(RUNTIMES[kind](num_ranks), folder, num_ranks, silence_limit_s=limit_s)
        assert nothing_of(folder)
        assert stage_exit.stalled and not stage_exit.lost
        assert ended_after_s < limit_s + STACKS_S + num_ranks * STACKS_PER_RANK_S + AFTER_GRACE_S
        log = (folder / "specs/attempt-1/stage.log").read_text()
        assert log.count("in waits_for_ever") == num_ranks, log
        assert [rank for rank in range(num_ranks) if f", rank {rank}:" not in log] == []
        return ended_after_s - limit_s

    took = all_at_once(run)
    fault.recovered(
        seen=f"{len(took)} of {len(NUM_RANKS)}: killed after {limit_s:g} s of silence (runtime.silence_limit_s); "
        "the log has the stacks of each rank under its number; no process of the stage is alive",
        recovery_s=max(took),
    )


def test_blocked_ranks_are_timed_out(fault: Fault, tmp_path: Path, kind: str) -> None:
    fault.describe("crashes", "1 to 4 ranks wait for ever in C, up to the stage's time-out", parts=PARTS[kind])
    timeout_s = 75.0

    def run(num_ranks: int) -> float:
        folder = tmp_path / str(num_ranks)
        stage_exit, _ = run_until_up(RUNTIMES[kind](num_ranks), folder, num_ranks, timeout_s=timeout_s)
        assert nothing_of(folder)
        assert stage_exit.timed_out and not stage_exit.lost
        assert stage_exit.duration_s < timeout_s + GRACE_S + AFTER_GRACE_S
        return stage_exit.duration_s - timeout_s

    took = all_at_once(run)
    fault.recovered(
        seen=f"{len(took)} of {len(NUM_RANKS)}: stopped at timeout_s; no process of the stage is alive",
        recovery_s=max(took),
    )


def test_torchrun_of_blocked_ranks_is_killed(fault: Fault, tmp_path: Path, kind: str) -> None:
    fault.describe("crashes", "`kill -9` of torchrun, 1 to 4 ranks of which wait for ever in C", parts=PARTS[kind])
    took = []
    for num_ranks in NUM_RANKS:
        folder = tmp_path / str(num_ranks)
        stage_exit, ended_after_s = run_until_up(
            RUNTIMES[kind](num_ranks), folder, num_ranks, act=lambda folder=folder: kill_torchrun(folder)
        )
        assert nothing_of(folder)
        assert (stage_exit.exit_code, stage_exit.oom_killed, stage_exit.lost) == (137, False, False)
        assert ended_after_s < AFTER_GRACE_S
        took.append(ended_after_s)
    fault.recovered(
        seen=f"{len(took)} of {len(NUM_RANKS)}: exit code 137, so container_lost, which may be tried again; no process "
        "of the stage is alive when its end is told",
        recovery_s=max(took),
    )


def kill_torchrun(folder: Path) -> bool:
    """SIGKILL, and nothing is cancelled; its supervisor, whose command names torchrun in a text, lives."""
    for pid in processes_with(folder_token(folder / "work")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # dead meanwhile
            if b"torch.distributed.run" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
    return False
