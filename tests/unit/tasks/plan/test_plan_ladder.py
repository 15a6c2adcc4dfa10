"""Nobody is surprised by a changed attempt: the plan names every change beforehand, in the order of the ladder."""

from containers.contracts.configs.parts.ladder import LadderSettings
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.hardware import GpuProfile
from containers.contracts.schedule import plan_batch
from tasks.config.run_sections import RuntimeSection
from tasks.plan.fit import ladder_lines

CONFIG = TrainRewardModelConfig()
FOUR = GpuProfile(name="4x48gb", num_gpus=4, num_processes=4, max_per_device_batch_size=2, shm_size_gib=16)
CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32")


def lines(profile: GpuProfile, runtime: RuntimeSection, *, size: int = 96) -> dict[str, str]:
    return dict(ladder_lines(CONFIG, profile, plan_batch(size, profile), runtime=runtime))


def test_each_failure_that_a_change_can_heal_has_its_line() -> None:
    without_shm = "NCCL_SHM_DISABLE=1: GPUs without P2P between them talk over sockets, which is slower"
    fewer = ("4 → 3 GPUs, accumulation 12 → 16", "3 → 2 GPUs, accumulation 16 → 24", "2 → 1 GPUs, accumulation 24 → 48")
    assert lines(FOUR, RuntimeSection(kind="docker")) == {
        "if a GPU is full": "per-device batch 2 → 1, accumulation 12 → 24",
        "if /dev/shm is full": f"shm_size_gib 16 → 32; then shm_size_gib 32 → 64; then {without_shm}",
        "if ranks time out": "; then ".join(("NCCL_DEBUG=INFO, and the flight recorder", *fewer)),
    }


def test_a_process_cannot_enlarge_the_shared_memory_of_its_machine() -> None:
    assert lines(FOUR, RuntimeSection(kind="process"))["if /dev/shm is full"].startswith("NCCL_SHM_DISABLE=1")


def test_on_one_gpu_a_full_dev_shm_is_answered_too() -> None:
    one = FOUR.model_copy(update={"num_gpus": 1, "num_processes": 1})
    found = lines(one, RuntimeSection(kind="docker"))
    assert list(found) == ["if a GPU is full", "if /dev/shm is full"]
    assert found["if /dev/shm is full"] == "shm_size_gib 16 → 32; then shm_size_gib 32 → 64"


def test_one_rank_without_gpu_needs_no_ladder() -> None:
    assert lines(CPU, RuntimeSection()) == {}


def test_what_cannot_be_changed_is_said_to_fail_and_why() -> None:
    one = FOUR.model_copy(update={"num_gpus": 1, "num_processes": 1, "max_per_device_batch_size": 1})
    assert lines(one, RuntimeSection())["if a GPU is full"] == (
        "the stage fails: the per-device batch is 1 already; gradient checkpointing is on already; weights in 8 or 4 "
        "bits would be another model than the key of this stage names"
    )


def test_a_ladder_that_is_switched_off_is_said_to_be() -> None:
    found = lines(FOUR, RuntimeSection(ladder=LadderSettings(enabled=False)))
    assert found["if a GPU is full"] == "the stage fails (runtime.ladder.enabled is false)"
    assert found["if ranks time out"] == "tried again unchanged, 2 times (runtime.ladder.enabled is false)"
