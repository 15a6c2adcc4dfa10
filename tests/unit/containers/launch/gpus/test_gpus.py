"""nvidia-smi lies, hangs and half-answers on real machines; each such answer must become a reason, never a count."""

import os
import time
from pathlib import Path

import pytest

from containers.launch.gpus import inventory as gpus
from containers.launch.gpus.cards import GpuReport
from containers.launch.gpus.inventory import make_device_nodes, read_gpus


@pytest.fixture
def fake_smi(smi: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return smi


def _report(fake_smi: pytest.MonkeyPatch, mode: str) -> GpuReport:
    fake_smi.setenv("FAKE_SMI", mode)
    return read_gpus(timeout_s=10)


def test_two_healthy_cards_are_read_in_full(fake_smi: pytest.MonkeyPatch) -> None:
    report = _report(fake_smi, "ok")
    assert report.problem == "" and report.advice == ""
    assert [gpu.index for gpu in report.gpus] == [0, 1]
    first = report.gpus[0]
    assert first.name == "NVIDIA RTX 6000 Ada Generation"
    assert (first.memory_total_mib, first.memory_used_mib, first.temperature_c) == (49140, 3, 41)
    assert (first.ecc_volatile, first.retired_pages, first.retirement_pending, first.mig) == (0, None, False, False)
    assert report.driver == "570.86.15"
    assert first.processes == ()


def test_a_process_is_listed_under_the_card_that_it_holds(fake_smi: pytest.MonkeyPatch) -> None:
    first, second = _report(fake_smi, "busy").gpus
    assert [(process.pid, process.name, process.memory_mib) for process in first.processes] == [(123, "python", 38000)]
    assert second.processes == ()


def test_error_counters_retirement_and_mig_are_read(fake_smi: pytest.MonkeyPatch) -> None:
    assert [gpu.ecc_volatile for gpu in _report(fake_smi, "ecc").gpus] == [0, 7]
    retired = _report(fake_smi, "retired").gpus[1]
    assert (retired.retired_pages, retired.retirement_pending) == (5, True)
    assert [gpu.mig for gpu in _report(fake_smi, "mig").gpus] == [True, False]


def test_figures_that_a_card_does_not_report_are_unknown_not_zero(fake_smi: pytest.MonkeyPatch) -> None:
    report = _report(fake_smi, "na")
    assert report.problem == ""
    gpu = report.gpus[0]
    assert (gpu.memory_used_mib, gpu.ecc_volatile, gpu.retired_pages, gpu.temperature_c) == (None,) * 4
    assert gpu.processes[0].memory_mib is None
    assert gpu.processes[0].name == "/usr/bin/python3, with comma"


@pytest.mark.parametrize(
    ("mode", "reason", "advice"),
    [
        ("norc", "exit code 1", "by hand"),
        ("mismatch", "exit code 18: Failed to initialize NVML: Driver/library version mismatch", "reboot"),
        ("unloaded", "exit code 9: NVIDIA-SMI has failed", "driver is not loaded"),
        ("none", "no devices", "lspci"),
        ("garbage", "cannot be read", "by hand"),
        ("short", "cannot be read", "by hand"),
        ("words", "'much' where a number", "by hand"),
        ("badpid", "list of processes cannot be read", "by hand"),
    ],
)
def test_an_answer_that_cannot_be_believed_gives_a_reason_and_no_gpus(
    fake_smi: pytest.MonkeyPatch, mode: str, reason: str, advice: str
) -> None:
    report = _report(fake_smi, mode)
    assert reason in report.problem
    assert advice in report.advice
    assert report.gpus == ()


@pytest.mark.parametrize(
    ("mode", "index", "sick"),
    [
        ("gone", 1, "GPU is lost"),
        ("unknown", 1, "Unknown Error"),
        ("reset", 1, "GPU requires reset"),
        ("handle", 3, "Unknown Error"),
    ],
)
def test_a_sick_card_is_one_of_them_and_does_not_hide_the_others(
    fake_smi: pytest.MonkeyPatch, mode: str, index: int, sick: str
) -> None:
    report = _report(fake_smi, mode)
    assert report.problem == ""
    assert {gpu.index: gpu.sick for gpu in report.gpus if gpu.sick} == {index: sick}
    assert report.gpus[0].memory_total_mib == 49140
    assert report.uuids[0] == report.gpus[0].uuid and "" not in report.uuids


def test_a_figure_that_the_driver_fails_to_read_is_told_from_one_that_a_card_lacks(
    fake_smi: pytest.MonkeyPatch,
) -> None:
    good, odd = _report(fake_smi, "err").gpus
    assert good.health.unreadable == ()
    assert odd.health.unreadable == ("ecc.errors.uncorrected.volatile.total", "temperature.gpu")
    assert (odd.sick, odd.ecc_volatile) == ("", None)


def test_a_corrupt_inforom_and_a_field_that_the_driver_does_not_know_leave_no_card_out(
    fake_smi: pytest.MonkeyPatch,
) -> None:
    assert [gpu.health.bad_inforom for gpu in _report(fake_smi, "inforom").gpus] == [False, True]
    (gpu,) = _report(fake_smi, "newfield").gpus
    assert (gpu.retired_pages, gpu.temperature_c, gpu.name) == (None, 41, "NVIDIA RTX 6000 Ada Generation")
    assert _report(fake_smi, "wsl").gpus[0].processes == ()


def test_capability_and_power_limit_are_read(fake_smi: pytest.MonkeyPatch) -> None:
    assert [gpu.compute_capability for gpu in _report(fake_smi, "turing").gpus] == [(7, 5), (7, 5)]
    assert _report(fake_smi, "ok").gpus[0].power_limit_w == 300.0


def test_no_devices_with_an_exit_code_is_a_reason_as_well(fake_smi: pytest.MonkeyPatch) -> None:
    fake_smi.setenv("FAKE_SMI_RC", "6")
    report = _report(fake_smi, "none")
    assert report.problem == "nvidia-smi ended with exit code 6: No devices were found"
    assert "lspci" in report.advice


def test_a_hanging_tool_is_killed_with_its_children(fake_smi: pytest.MonkeyPatch) -> None:
    fake_smi.setenv("FAKE_SMI", "hang")
    started = time.monotonic()
    report = read_gpus(timeout_s=0.5)
    assert time.monotonic() - started < 3
    assert report.problem == "nvidia-smi did not answer within 0.5 s and was killed"
    assert not _living_with("FAKE_SMI=hang", command="sleep")


def test_a_machine_without_the_tool_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = read_gpus()
    assert report.problem == "nvidia-smi is not on PATH: there is no NVIDIA driver here"
    assert "profile without GPUs" in report.advice


def test_a_tool_that_cannot_be_started_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "nvidia-smi"
    broken.write_bytes(b"\x7fELF and nothing more")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cannot be started" in read_gpus().problem


def _living_with(variable: str, *, command: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes() and command in (folder / "comm").read_text():
                found.append(folder.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("user", "is_there", "called"), [(1000, False, "-u -c=0\n"), (1000, True, ""), (0, False, "")])
def test_the_drivers_helper_makes_the_node_that_a_users_stage_could_not_have_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: int, is_there: bool, called: str
) -> None:
    helper, said, node = tmp_path / "nvidia-modprobe", tmp_path / "said", tmp_path / "nvidia-uvm"
    helper.write_text(f'#!/bin/sh\necho "$*" > {said}\n')
    helper.chmod(0o755)
    if is_there:
        node.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_UNIFIED_MEMORY", node)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    make_device_nodes()
    assert (said.read_text() if said.exists() else "") == called
