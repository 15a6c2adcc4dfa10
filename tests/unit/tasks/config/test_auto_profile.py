"""`auto` is decided once: a run that Prefect starts again must not change its ranks, and with them its stages' keys."""

from pathlib import Path

import pytest

from containers.contracts.hardware import GpuProfile
from containers.launch.gpus.leases import leased
from tasks.config.profiles import auto_profile

CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32")
ONE = GpuProfile(name="1x48gb", num_gpus=1, gpu_memory_gib=48)
TWO = GpuProfile(name="2x48gb", num_gpus=2, num_processes=2, gpu_memory_gib=48)
FREE, ONE_BUSY = "49140 49140", "49140 49140:38000"


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, smi: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "leases"
    smi.setenv("RLHF_GPU_LEASES", str(folder))
    smi.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    smi.delenv("PREFECT__FLOW_RUN_ID", raising=False)
    smi.setenv("FAKE_SMI", FREE)
    return folder


def _auto(ladder: tuple[GpuProfile, ...] = (TWO, ONE)) -> GpuProfile:
    return auto_profile(ladder, CPU, divides=lambda profile: "")


def test_the_choice_is_the_named_profile_and_the_reason(smi: pytest.MonkeyPatch) -> None:
    chosen = _auto()
    assert chosen.chosen_because.startswith("auto: 2 GPU(s) (0, 1: NVIDIA card) are free; 2x48gb takes 2")
    assert chosen.model_copy(update={"chosen_because": ""}) == TWO


def test_cards_that_another_run_has_are_not_free(leases: Path) -> None:
    leases.mkdir()
    with leased(["GPU-00000000-0000-4000-8000-000000000000"], count=1, holder="other 1, train_policy", folder=leases):
        chosen = _auto()
    assert chosen.name == "1x48gb"
    assert "GPU 0: Run other 1, train_policy (process " in chosen.chosen_because


def test_cards_that_the_user_hides_do_not_count(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert _auto().name == "1x48gb"


def test_a_flow_run_keeps_its_choice_when_it_is_started_again(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("PREFECT__FLOW_RUN_ID", "0193aa70-0000-7000-8000-000000000001")
    first = _auto()
    smi.setenv("FAKE_SMI", ONE_BUSY)
    assert _auto() == first
    smi.setenv("PREFECT__FLOW_RUN_ID", "0193aa70-0000-7000-8000-000000000002")
    assert _auto().name == "1x48gb", "another run chooses for itself"


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(1, 1, 1), (16, 1, 16), (16, 3, 5), (2, 4, 1)])
def test_without_a_gpu_the_ranks_share_the_cores_and_keep_them_when_the_run_is_started_again(
    smi: pytest.MonkeyPatch, cores: int, ranks: int, threads: int
) -> None:
    smi.setenv("FAKE_SMI", "none")
    smi.setenv("PREFECT__FLOW_RUN_ID", "0193aa70-0000-7000-8000-000000000003")
    smi.setattr("tasks.config.profiles.usable_cores", lambda: cores)
    profile = CPU.model_copy(update={"num_processes": ranks})
    chosen = auto_profile((TWO, ONE), profile, divides=lambda _: "")
    assert (chosen.name, chosen.num_threads, chosen.precision) == ("cpu", threads, "float32")
    assert chosen.chosen_because.endswith(f"; {threads} thread(s) a rank on {cores} core(s), float32")
    smi.setattr("tasks.config.profiles.usable_cores", lambda: cores + 7)
    assert auto_profile((TWO, ONE), profile, divides=lambda _: "") == chosen


def test_a_choice_that_is_no_fallback_any_more_or_cannot_be_read_is_made_anew(
    smi: pytest.MonkeyPatch, leases: Path
) -> None:
    smi.setenv("PREFECT__FLOW_RUN_ID", "run-1")
    assert _auto().name == "2x48gb"
    assert _auto((ONE,)).name == "1x48gb"
    (leases / "auto" / "run-1.json").write_text("{")
    assert _auto().name == "2x48gb"
