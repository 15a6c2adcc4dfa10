"""A training on two ranks that is stopped, loses one of them, or waits for it in vain; with torchrun and processes."""

import os
import signal
import time
from pathlib import Path

import pytest
from fault_rows import Fault
from reference import REWARD, Reference
from stage_alone import StageAlone
from tiny_project import TinyProject, stage_processes

from containers.contracts.hardware import BatchPlan
from containers.contracts.outcome import FailureKind

pytestmark = [pytest.mark.slow, pytest.mark.stages]

AREA = "training"
PARTS = "torchrun, gloo, two processes"
TWO_RANKS = BatchPlan(global_batch_size=16, per_device_batch_size=8, num_processes=2, gradient_accumulation_steps=1)


@pytest.fixture(scope="module")
def undisturbed_ranks(tiny: TinyProject, undisturbed: Reference, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The same training on two ranks; sums in another order give other weights than on one."""
    whole = StageAlone.of(tiny, REWARD, tmp_path_factory.mktemp("ranks")).changed(batch=TWO_RANKS)
    assert whole.attempt() is None
    return whole.as_reference()


def test_a_training_on_two_ranks_is_cancelled(
    tiny: TinyProject, undisturbed_ranks: Reference, fault: Fault, tmp_path: Path
) -> None:
    fault.describe(AREA, f"SIGTERM in {REWARD} on two ranks at step 12", parts=PARTS)
    stage = StageAlone.of(tiny, REWARD, tmp_path).changed(batch=TWO_RANKS)
    failure = stage.attempt(stop_at=12)
    assert failure is not None and failure.kind is FailureKind.CANCELLED
    newest = stage.checkpoints[-1]
    assert f"which {newest} holds" in failure.message
    fault.recovery_starts()
    assert stage.attempt() is None
    assert f"checkpoint-{stage.resumed_from()}" == newest
    stage.assert_bit_for_bit(undisturbed_ranks)
    assert stage.repeated == 0
    fault.recovered(seen=f"both ranks end the same step and save {newest}; go on from it, bit for bit")


@pytest.mark.parametrize("rank", [0, 1])
def test_kill_9_of_one_rank(
    tiny: TinyProject, undisturbed_ranks: Reference, fault: Fault, tmp_path: Path, rank: int
) -> None:
    fault.describe(AREA, f"`kill -9` of rank {rank} of two in {REWARD} at step 12", parts=PARTS)
    stage = StageAlone.of(tiny, REWARD, tmp_path).changed(batch=TWO_RANKS)
    failure = stage.attempt(to_rank=(signal.SIGKILL, rank, 12))
    assert failure is not None and failure.kind is FailureKind.CONTAINER_LOST, failure
    assert f"rank {rank} was killed (SIGKILL)" in failure.message
    fault.recovery_starts()
    assert stage.attempt() is None
    stage.assert_bit_for_bit(undisturbed_ranks)
    assert stage.resumed_from() >= 10
    assert stage.repeated <= 5
    fault.recovered(
        seen="the other rank ends too; the log's “Connection reset by peer” is read as a lost rank, so it may be tried "
        "again; goes on bit for bit",
        repeated=f"{stage.repeated} steps of 40 (saved every 5)",
    )


def test_a_rank_hangs(tiny: TinyProject, undisturbed_ranks: Reference, fault: Fault, tmp_path: Path) -> None:
    fault.describe(AREA, f"SIGSTOP of rank 1 of two in {REWARD} at step 12: it hangs, and does not end", parts=PARTS)
    stage = StageAlone.of(tiny, REWARD, tmp_path)
    limit_s = 30
    profile = stage.spec.profile.model_copy(update={"collective_timeout_s": limit_s})
    stage = stage.changed(batch=TWO_RANKS, profile=profile)
    began = time.monotonic()
    failure = stage.attempt(to_rank=(signal.SIGSTOP, 1, 12))
    noticed_after_s = time.monotonic() - began
    assert failure is not None and failure.kind is FailureKind.NCCL_TIMEOUT, failure
    assert f"longer than collective_timeout_s ({limit_s} s)" in failure.message
    assert not list(stage_processes(os.getpid())), "nothing of it is left"
    fault.recovery_starts()
    assert stage.attempt() is None
    stage.assert_bit_for_bit(undisturbed_ranks)
    assert stage.resumed_from() >= 10
    assert stage.repeated <= 5
    fault.recovered(
        seen=f"the other rank waits collective_timeout_s ({limit_s} s) and no longer, torchrun kills the one that "
        f"hangs: over after {noticed_after_s:.0f} s from start to end, classified nccl_timeout; goes on bit for bit",
        repeated=f"{stage.repeated} steps of 40 (saved every 5)",
    )
