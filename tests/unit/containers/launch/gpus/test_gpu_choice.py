"""`auto` takes what is free and healthy and says why; it never falls to the CPU because a driver is broken."""

from pathlib import Path

import pytest
import yaml

from containers.contracts.hardware import GpuProfile
from containers.launch.gpus.choice import NoProfileFitsError, ProfileChoice, choose_profile
from containers.launch.gpus.inventory import read_gpus

FOLDER = Path(__file__).resolve().parents[5] / "configs" / "gpu_profiles"
NAMES = tuple(yaml.safe_load((FOLDER / "auto.yaml").read_text())["ladder"])
GB48, GB80, GB141 = "49140", "81559", "143771"


def _profile(name: str) -> GpuProfile:
    return GpuProfile.model_validate(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))


def _choose(smi: pytest.MonkeyPatch, mode: str, *, leased: dict[str, str] | None = None) -> ProfileChoice:
    smi.setenv("FAKE_SMI", mode)
    report = read_gpus(timeout_s=10, kernel_log=Path("/dev/null"))
    ladder = [_profile(name) for name in NAMES]
    return choose_profile(ladder, _profile("cpu"), report, report.gpus, leased=leased or {})


@pytest.mark.parametrize(
    ("fleet", "chosen"),
    [
        ([GB80] * 8, "8x80gb"),
        ([GB141] * 8, "8x141gb"),
        ([GB141] * 7 + [GB80], "8x80gb"),
        ([GB48] * 8, "8x48gb"),
        ([GB48] * 7 + [f"{GB48}:38000"], "7x48gb"),
        ([GB48] * 7, "7x48gb"),
        ([GB48] * 6, "4x48gb"),
        ([GB80] * 4, "4x80gb"),
        ([GB48] * 3, "1x48gb"),
        ([GB80], "1x80gb"),
        ([GB141], "1x141gb"),
        (["46068"], "1x48gb"),
    ],
)
def test_the_largest_profile_that_fits_count_and_memory_is_taken(
    smi: pytest.MonkeyPatch, fleet: list[str], chosen: str
) -> None:
    choice = _choose(smi, " ".join(fleet))
    assert choice.profile.name == chosen
    assert f"{chosen} takes {choice.profile.num_gpus}" in choice.reason


def test_busy_broken_and_leased_cards_are_left_out_each_with_its_reason(smi: pytest.MonkeyPatch) -> None:
    fleet = [GB48] * 8
    fleet[1], fleet[3] = f"{GB48}:38000", f"{GB48}:3:2"
    choice = _choose(smi, " ".join(fleet), leased={"GPU-00000000-0000-4000-8000-000000000005": "Run other (process 7)"})
    assert choice.profile.name == "4x48gb"
    for reason in (
        "5 GPU(s) (0, 2, 4, 6, 7",
        "7x48gb not: 5 of 7 GPUs with 48 GiB",
        "GPU 1: 38000/49140 MiB used by others",
        "GPU 3: 2 uncorrected ECC errors",
        "GPU 5: Run other (process 7) has it",
    ):
        assert reason in choice.reason


def test_a_hot_card_is_left_out(smi: pytest.MonkeyPatch) -> None:
    choice = _choose(smi, "hot")
    assert choice.profile.name == "1x48gb"
    assert "GPU 0: runs slower than it could" in choice.reason


@pytest.mark.parametrize(("mode", "which"), [("gone", "GPU is lost"), ("unknown", "Unknown Error")])
def test_a_sick_card_is_left_out_by_name_and_the_other_is_taken(smi: pytest.MonkeyPatch, mode: str, which: str) -> None:
    choice = _choose(smi, mode)
    assert choice.profile.name == "1x48gb"
    assert f"does not work, the driver says: {which}" in choice.reason
    assert "GPU 1" in choice.reason and "1 GPU(s) (0:" in choice.reason


def test_where_all_are_taken_the_run_waits_and_does_not_fall_to_the_cpu(smi: pytest.MonkeyPatch) -> None:
    choice = _choose(smi, f"{GB48}:40000 {GB48}:40000")
    assert choice.profile.name == "1x48gb"
    assert "healthy but not all free, so stages wait for them" in choice.reason


def test_a_machine_without_gpu_gets_the_cpu_and_is_told_so(smi: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _choose(smi, "none").profile.name == "cpu"
    smi.setenv("PATH", str(tmp_path))
    choice = _choose(smi, "ok")
    assert choice.profile.name == "cpu"
    assert choice.reason == "nvidia-smi is not on PATH: there is no NVIDIA driver here, so no GPU is used"


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("mismatch", "Driver/library version mismatch"),
        ("garbage", "cannot be read"),
        (f"{GB48}:3:9", "9 uncorrected ECC errors"),
        ("16376", "1x48gb not: 0 of 1 GPUs with 48 GiB"),
    ],
)
def test_gpus_that_cannot_be_used_are_an_error_with_the_reason(smi: pytest.MonkeyPatch, mode: str, reason: str) -> None:
    with pytest.raises(NoProfileFitsError, match=reason):
        _choose(smi, mode)


def test_a_profile_that_cannot_divide_the_batch_is_passed_over(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", " ".join([GB48] * 7))
    report = read_gpus(timeout_s=10)
    choice = choose_profile(
        [_profile(name) for name in NAMES],
        _profile("cpu"),
        report,
        report.gpus,
        leased={},
        divides=lambda profile: "" if 96 % profile.num_processes == 0 else "96 cannot be divided",
    )
    assert choice.profile.name == "4x48gb"
    assert "7x48gb not: 96 cannot be divided" in choice.reason
