"""A stage that eats memory dies alone: its container leaves the servers and the system their share of the machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.host.control_groups import Memory
from containers.launch import host_limits as module
from containers.launch.host_limits import machine_memory, memory_for, memory_limit
from tests.unit.factories.launch_factory import GIB, make_profile


def test_without_a_setting_a_share_of_the_machine_is_left() -> None:
    limit = memory_limit(make_profile(), machine_bytes=256 * GIB)
    # Two for the servers and the orchestrator, and a twentieth.
    assert limit.limit_bytes == 256 * GIB - 2 * GIB - int(0.05 * 256 * GIB)
    assert limit.reason == (
        "host_memory_gib of profile `test` is not set; derived 241 GiB from the 256 GiB of this machine less 14.8 GiB "
        "for servers, orchestrator and system"
    )


@pytest.mark.parametrize(("machine_gib", "limit_gib"), [(0.5, 0.25), (2, 1), (4, 2)])
def test_a_machine_smaller_than_the_share_gives_the_half_of_it(machine_gib: float, limit_gib: float) -> None:
    limit = memory_limit(make_profile(), machine_bytes=int(machine_gib * GIB))
    assert limit.limit_bytes == limit_gib * GIB
    assert "half of the" in limit.reason and "for servers, orchestrator and system would leave less" in limit.reason


@given(st.integers(1024**2, 2**50))
def test_every_machine_gives_a_limit_that_is_positive_and_below_it(machine_bytes: int) -> None:
    assert 0 < memory_limit(make_profile(), machine_bytes=machine_bytes).limit_bytes < machine_bytes


def test_what_a_profile_says_wins() -> None:
    named = memory_limit(make_profile(host_memory_gib=2), machine_bytes=256 * GIB)
    assert (named.limit_bytes, named.reason) == (2 * GIB, "host_memory_gib of profile `test`: 2 GiB")
    none = memory_limit(make_profile(host_memory_gib="unlimited"), machine_bytes=256 * GIB)
    assert (none.limit_bytes, none.reason) == (
        0,
        "host_memory_gib of profile `test`: unlimited, so the whole machine",
    )


def test_a_process_has_no_limit_and_is_told_so() -> None:
    unset = memory_limit(make_profile(), machine_bytes=256 * GIB, runtime="process")
    assert unset.limit_bytes == 0 and "the process runtime enforces no limit" in unset.reason
    named = memory_limit(make_profile(host_memory_gib=2), machine_bytes=256 * GIB, runtime="process")
    assert named.limit_bytes == 2 * GIB and "the process runtime does not enforce" in named.reason


def test_a_machine_that_nobody_asked_gives_no_limit() -> None:
    assert memory_limit(make_profile(), machine_bytes=0).limit_bytes == 0


def test_the_smaller_of_own_memory_and_of_the_daemons_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    own, machine = Memory(3 * GIB, GIB), Memory(24 * GIB, 20 * GIB)
    monkeypatch.setattr(module, "read_memory", lambda: own)
    monkeypatch.setattr(module, "read_machine_memory", lambda: machine)
    assert (machine_memory(24 * GIB), machine_memory(2 * GIB), machine_memory(0)) == (3 * GIB, 2 * GIB, 3 * GIB)
    # Who names a limit for containers says that the daemon has so much outside of our group.
    assert memory_for(make_profile(), "docker") == memory_for(make_profile(), "process") == own
    assert memory_for(make_profile(host_memory_gib=8), "docker") == machine
    assert memory_for(make_profile(host_memory_gib=8), "process") == own


def test_a_daemon_that_cannot_limit_memory_is_named() -> None:
    limit = memory_limit(make_profile(), machine_bytes=256 * GIB, can_limit=False)
    assert limit.limit_bytes == 0 and "this Docker daemon cannot limit memory" in limit.reason
    assert "the memory of the machine is not known" in memory_limit(make_profile(), machine_bytes=0).reason
