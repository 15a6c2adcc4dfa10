"""`rlhf doctor` says what this machine does, not what a rule of thumb says."""

from pathlib import Path

import pytest

from containers.contracts.hardware import GIB, AllReduce, Collectives, GpuProfile
from containers.contracts.outcome import FailureKind, StageFailure
from tasks.checks.measure_ranks import measure_ranks, shm_advice
from tasks.run.runtime import CodeIdentity, present_stages_digest

TWO_RANKS = GpuProfile(name="cpu-2", num_gpus=0, num_processes=2, precision="float32", shm_size_gib=0.25)
FOUR_GPUS = GpuProfile(name="4x48gb", num_gpus=4, num_processes=4, shm_size_gib=16)


def here() -> CodeIdentity:
    return CodeIdentity(runtime="process", reason="", image_digest="", stages_digest=present_stages_digest())


def taken(shm_gib: float) -> Collectives:
    size = AllReduce(size_bytes=1024, median_s=0.001, bus_bytes_per_s=1e6)
    return Collectives(
        backend="nccl",
        num_processes=4,
        sizes=(size,),
        shm_total_bytes=16 * GIB,
        shm_used_bytes=int(shm_gib * GIB),
        duration_s=1,
    )


@pytest.mark.stages
def test_two_ranks_are_started_as_a_stage_is_and_measure_the_way_between_them(tmp_path: Path) -> None:
    found = measure_ranks(TWO_RANKS, code=here(), image="", folder=tmp_path)
    assert isinstance(found, Collectives), found
    assert (found.backend, found.num_processes) == ("gloo", 2)
    assert "2 ranks over gloo" in (tmp_path / "work" / "events.jsonl").read_text()


@pytest.mark.stages
def test_ranks_without_their_gpus_are_a_failure_that_says_so(tmp_path: Path) -> None:
    two_gpus = TWO_RANKS.model_copy(update={"name": "2x48gb", "num_gpus": 2, "tf32": False})
    found = measure_ranks(two_gpus, code=here(), image="", folder=tmp_path)
    assert isinstance(found, StageFailure)
    assert found.kind is FailureKind.MISSING_PREREQUISITE
    assert found.message.startswith("Profile 2x48gb has 2 GPUs, torch")


@pytest.mark.parametrize(
    ("shm_gib", "size_gib", "end"),
    [
        (0, 16, "is for data loaders."),
        (0.1, 0.5, "is too little: set it to 1 in the GPU profile."),
        (0.1, 1, "is enough."),
        (1.2, 2, "is too little: set it to 2.5 in the GPU profile."),
        (1.2, 16, "is enough."),
    ],
)
def test_the_advice_about_shared_memory_follows_from_what_was_taken(shm_gib: float, size_gib: float, end: str) -> None:
    profile = FOUR_GPUS.model_copy(update={"shm_size_gib": size_gib})
    assert shm_advice(profile, taken(shm_gib)).endswith(end)
