"""Heat, bad rows and Xid errors do not stop a driver from listing a card as free; they must be asked for."""

from pathlib import Path

import pytest

from containers.launch.gpus.cards import Gpu, Health
from containers.launch.gpus.inventory import read_gpus, read_states
from containers.launch.gpus.verdicts import degraded, faulty, is_healthy

# From public issue threads: the driver's own words in the kernel's log.
XID_LOG = """\
6,1201,881234567,-;NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=python, Ch 00000008, intr 00000000. MMU Fault
6,1202,881234999,-;NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
6,1203,881235999,-;NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.
"""


def _gpus(smi: pytest.MonkeyPatch, mode: str, *, kernel_log: Path = Path("/dev/null")) -> tuple[Gpu, ...]:
    smi.setenv("FAKE_SMI", mode)
    report = read_gpus(timeout_s=10, kernel_log=kernel_log)
    assert report.problem == ""
    return report.gpus


@pytest.mark.parametrize("mode", ["hot", "olddriver"])
def test_a_card_that_slows_itself_down_is_seen_with_new_and_old_drivers(smi: pytest.MonkeyPatch, mode: str) -> None:
    hot, cool = _gpus(smi, mode)
    assert hot.health.throttled == ("too hot (the card slows itself down)",)
    trouble = degraded(hot)
    assert trouble is not None and "GPU 0: runs slower than it could: too hot" in trouble[0]
    assert (is_healthy(hot), is_healthy(cool)) == (False, True)


def test_rows_that_wait_to_be_replaced_or_cannot_be_make_a_card_broken(smi: pytest.MonkeyPatch) -> None:
    good, waiting = _gpus(smi, "remap")
    assert faulty(good) is None
    assert faulty(waiting) is not None and waiting.health.remap_pending
    failed, other = _gpus(smi, "remapfailed")
    assert faulty(failed) is not None and failed.health.remap_failed
    assert faulty(other) is None


def test_an_error_of_the_card_counts_and_one_of_a_program_does_not(smi: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(XID_LOG)
    programs_own, fallen = _gpus(smi, "ok", kernel_log=log)
    assert programs_own.health.xids == ()
    assert fallen.health.xids == ("79 (fell off the bus)",)
    assert not is_healthy(fallen)
    trouble = degraded(fallen)
    assert trouble is not None and "79 (fell off the bus)" in trouble[0]


def test_a_log_that_may_not_be_read_says_nothing(smi: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert [gpu.health for gpu in _gpus(smi, "ok", kernel_log=tmp_path / "none")] == [Health(), Health()]


def test_figures_that_a_card_does_not_report_stay_unknown(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "na")
    (state,) = read_states()
    assert (state.utilization_percent, state.power_w, state.temperature_c, state.ecc_uncorrected) == (None,) * 4
    assert state.memory_total_mib == 49140


@pytest.mark.parametrize("mode", ["mismatch", "hang", "garbage", "none"])
def test_a_driver_that_gives_no_sample_gives_none_and_does_not_hang(smi: pytest.MonkeyPatch, mode: str) -> None:
    smi.setenv("FAKE_SMI", mode)
    if mode == "garbage":
        smi.setenv("PATH", "/nonexistent")
    assert read_states(timeout_s=1) == ()
