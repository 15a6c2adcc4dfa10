"""Under load the self-test sees Xid errors that came since it began, and says where it cannot look."""

from pathlib import Path

import pytest

from containers.launch.gpus.kernel_log import told_xids
from tasks.checks.selftest import cards
from tasks.checks.selftest.cards import Watch

OLD = "6,1202,881234999,-;NVRM: Xid (PCI:0000:02:00): 79, pid=7, GPU has fallen off the bus.\n"
PROGRAM = "6,1203,881235001,-;NVRM: Xid (PCI:0000:02:00): 31, pid=7, MMU Fault\n"
NEW = "6,1204,881235999,-;NVRM: Xid (PCI:0000:02:00): 48, An uncorrectable double bit error (DBE)\n"


@pytest.fixture
def watched(smi: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Watch, Path]:
    """Two cards, and a kernel's log in which the second one has an old error."""
    log = tmp_path / "kmsg"
    log.write_text(OLD)
    smi.setenv("FAKE_SMI", "ok")
    smi.setattr(cards, "told_xids", lambda: told_xids(log))
    states = cards.read_states()
    buses = {state.uuid: f"00000000:0{place + 1}:00.0" for place, state in enumerate(states)}
    return Watch([*buses], buses, before=told_xids(log)), log


def test_an_error_that_came_under_load_is_told_with_its_card(watched: tuple[Watch, Path]) -> None:
    watch, log = watched
    watch.sample()
    assert not [value for value in watch.measured() if value.name == "new_xid"], "the old one"
    log.write_text(OLD + PROGRAM + NEW + OLD)
    told = [value.of for value in watch.measured() if value.name == "new_xid"]
    assert sorted(told) == ["GPU 1: Xid 48 (double-bit ECC error)", "GPU 1: Xid 79 (fell off the bus)"]
    assert watch.notes() == ()


def test_a_log_that_may_not_be_read_is_said_and_finds_nothing(watched: tuple[Watch, Path]) -> None:
    watch, log = watched
    log.unlink()
    watch.before = None
    watch.sample()
    assert not [value for value in watch.measured() if value.name == "new_xid"]
    assert "cannot be read" in watch.notes()[0]
    assert Watch([]).notes() == (), "without cards nothing is looked for"
