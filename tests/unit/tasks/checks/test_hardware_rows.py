"""The rows about GPUs of the system check: why this profile, who has the cards, and variables that reach nobody."""

from pathlib import Path

import pytest

from containers.contracts.hardware import GpuProfile
from containers.contracts.records import CheckFinding
from containers.launch.gpus.cards import Gpu, GpuReport
from containers.launch.gpus.leases import leased
from tasks.checks.hardware import gpu_findings, gpu_rows, variable_rows

ONE = GpuProfile(name="1x48gb", num_gpus=1, gpu_memory_gib=48)
TWO = GpuProfile(name="2x48gb", num_gpus=2, num_processes=2, gpu_memory_gib=48)
FIRST = "GPU-00000000-0000-4000-8000-000000000000"


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, smi: pytest.MonkeyPatch) -> Path:
    smi.setenv("RLHF_GPU_LEASES", str(tmp_path))
    smi.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def _rows(profile: GpuProfile, store: Path) -> dict[str, CheckFinding]:
    return {row.name: row for row in gpu_rows(profile, "process", store_dir=store, cuda="12.8", shares_cards=True)}


def test_why_auto_took_the_profile_is_a_row_of_its_own(smi: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi.setenv("FAKE_SMI", "49140")
    assert "GPU profile" not in _rows(ONE, tmp_path)
    row = _rows(ONE.model_copy(update={"chosen_because": "auto: 1 GPU(s) are free"}), tmp_path)["GPU profile"]
    assert (row.found, row.wanted, row.verdict) == ("auto: 1 GPU(s) are free", "1x48gb", "ok")


def test_a_card_that_another_run_has_hinders_no_start_and_names_the_run(smi: pytest.MonkeyPatch, leases: Path) -> None:
    smi.setenv("FAKE_SMI", "49140:38000 49140")
    with leased([FIRST], count=1, holder="other 1, train_policy", folder=leases):
        rows = _rows(TWO, leases)
        assert rows["GPU 0"].verdict == "warning"
        assert rows["GPU 0"].found.startswith("GPU 0: Run other 1, train_policy (process ")
        assert list(_rows(ONE, leases))[1] == "GPU 1", "a run for one card would take the free one"
    assert _rows(TWO, leases)["GPU 0"].verdict == "failure", "without a lease it is a stranger's"


def test_cards_for_one_program_are_no_cards_for_a_stage_and_its_vllm() -> None:
    cards = tuple(
        Gpu(
            index=number,
            uuid=f"GPU-{number}",
            name="L40S",
            memory_total_mib=49140,
            memory_used_mib=0,
            is_exclusive=True,
        )
        for number in (0, 1)
    )
    rows = gpu_findings(GpuReport(gpus=cards), TWO, shares_cards=True)
    (row,) = [row for row in rows if row.name == "compute mode"]
    assert (row.verdict, row.found) == ("failure", "GPU 0,1: one program at a time (EXCLUSIVE_PROCESS)")
    assert "nvidia-smi -i 0,1 -c DEFAULT" in row.advice
    assert not any(row.name == "compute mode" for row in gpu_findings(GpuReport(gpus=cards), TWO))


def test_variables_of_the_shell_are_said_to_reach_nobody_with_what_is_wrong_about_each() -> None:
    assert list(variable_rows({"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "CUDA_HOME": "/cuda"})) == []
    (row,) = variable_rows(
        {"NCCL_TIMEOUT": "9", "NCCL_P2P_LEVEL": "LOC", "NCCL_SHM_DISABLE": "1", "CUDA_LAUNCH_BLOCKING": "1"}
    )
    assert row.verdict == "warning"
    assert row.found.startswith("CUDA_LAUNCH_BLOCKING, NCCL_P2P_LEVEL, NCCL_SHM_DISABLE, NCCL_TIMEOUT in the")
    for part in ("They reach no stage", "NCCL_TIMEOUT: is read by no library", "over TCP", "makes every kernel wait"):
        assert part in row.advice
