"""Several pipelines on one machine: no two stages have the same card, and who waits knows behind whom."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from containers.contracts.hardware import GpuProfile
from containers.launch.base import GpuUnavailableError
from tasks.pipeline import gpu_turn as module
from tasks.pipeline.gpu_turn import gpu_turn
from tasks.store.lock import WaitCancelledError

ONE_GPU = GpuProfile(name="1x48gb", num_gpus=1, gpu_memory_gib=48)
TWO_GPUS = GpuProfile(name="2x48gb", num_gpus=2, num_processes=2, gpu_memory_gib=48)
NO_GPU = GpuProfile(name="cpu", num_gpus=0, precision="float32")
A, B = "GPU-5f3c1e0a-0000-4000-8000-00000000000a", "GPU-5f3c1e0a-0000-4000-8000-00000000000b"
WAIT_S = 60


def _first_of_fleet(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012d}"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, smi: pytest.MonkeyPatch) -> Path:
    """The file that says which GPUs there are: two free ones, and no other run."""
    smi.setenv("RLHF_GPU_LEASES", str(tmp_path / "leases"))
    smi.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    smi.setattr(module, "_ASK_EVERY_S", 0.05)
    smi.setattr(module, "_SILENT_WAIT_S", 0.0)
    mode = tmp_path / "mode"
    mode.write_text("ok")
    smi.setenv("FAKE_SMI_FILE", str(mode))
    return mode


@contextmanager
def _turn(
    profile: GpuProfile,
    holder: str,
    *,
    say: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
    ours: Callable[[], frozenset[int]] = frozenset,
) -> Iterator[tuple[str, ...]]:
    with gpu_turn(profile, holder=holder, say=say, should_stop=should_stop, ours=ours) as gpus:
        yield gpus


class _Waiter:
    """A stage in a thread of its own: what it said, and which GPUs it got."""

    def __init__(self, profile: GpuProfile, holder: str, *, ours: Callable[[], frozenset[int]] = frozenset) -> None:
        self.said: list[str] = []
        self.spoke, self.got = threading.Event(), threading.Event()
        self.gpus: tuple[str, ...] = ()
        self._may_end = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(profile, holder, ours), daemon=True)
        self._thread.start()

    def _work(self, profile: GpuProfile, holder: str, ours: Callable[[], frozenset[int]]) -> None:
        def say(line: str) -> None:
            self.said.append(line)
            self.spoke.set()

        with _turn(profile, holder, say=say, ours=ours) as gpus:
            self.gpus = gpus
            self.got.set()
            self._may_end.wait(timeout=WAIT_S)

    def end(self) -> None:
        self._may_end.set()
        self._thread.join(timeout=WAIT_S)


def test_two_stages_for_one_card_each_work_side_by_side_on_different_cards() -> None:
    with _turn(ONE_GPU, "first", say=pytest.fail) as first, _turn(ONE_GPU, "second", say=pytest.fail) as second:
        assert {first, second} == {(A,), (B,)}


def test_a_stage_for_all_cards_waits_for_the_one_that_has_some_and_says_behind_whom() -> None:
    with _turn(ONE_GPU, "first 2026, train_policy"):
        waiter = _Waiter(TWO_GPUS, "second 2026, train_policy")
        assert waiter.spoke.wait(timeout=WAIT_S)
        assert not waiter.got.is_set()
    assert waiter.got.wait(timeout=WAIT_S)
    assert waiter.gpus == (A, B)
    waiter.end()
    (line,) = waiter.said
    assert line.startswith("Run first 2026, train_policy (process ")
    assert line.endswith(" has GPU 0; waiting for 2 of the GPUs.")


def test_a_small_stage_does_not_overtake_a_large_one_that_waits() -> None:
    with _turn(ONE_GPU, "first"):
        large = _Waiter(TWO_GPUS, "large")
        assert large.spoke.wait(timeout=WAIT_S)
        small = _Waiter(ONE_GPU, "small")
        assert small.spoke.wait(timeout=WAIT_S)
        assert "Run large" in small.said[0] and "waits for GPUs before this one" in small.said[0]
        assert not small.got.is_set(), "card 1 is free, and kept for the large one"
    assert large.got.wait(timeout=WAIT_S)
    large.end()
    assert small.got.wait(timeout=WAIT_S)
    small.end()


def test_a_card_that_a_stranger_uses_is_left_alone_and_waited_for_by_name(machine: Path) -> None:
    machine.write_text("busy")
    with _turn(ONE_GPU, "has the other card", say=pytest.fail) as gpus:
        assert gpus == (B,)
    waiter = _Waiter(TWO_GPUS, "wants both")
    assert waiter.spoke.wait(timeout=WAIT_S)
    assert waiter.said[0] == ("GPU 0: 38000/49140 MiB used by others (pid 123 python); waiting for 2 of the GPUs.")
    assert not waiter.got.is_set()
    machine.write_text("ok")
    assert waiter.got.wait(timeout=WAIT_S), "the memory is free, so it starts"
    waiter.end()


def test_a_card_with_a_container_of_ours_that_still_works_is_had_again(machine: Path) -> None:
    machine.write_text("busy")
    with _turn(ONE_GPU, "goes on", say=pytest.fail, ours=lambda: frozenset({123})) as gpus:
        assert gpus == (A,), "the card on which its container computes, and not a free one"


def test_a_card_that_something_speaks_against_is_taken_last(machine: Path) -> None:
    machine.write_text("hot")
    with _turn(ONE_GPU, "first") as gpus:
        assert gpus == (B,)
        with _turn(ONE_GPU, "second") as others:
            assert others == (A,)


def test_only_the_cards_that_the_user_lets_programs_see_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with _turn(ONE_GPU, "first") as gpus:
        assert gpus == (B,)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("49140", "asks for 2 GPUs of 48 GiB, but only 1 of the 1 visible can be used"),
        ("49140 49140:3:5", r"1 of the 2 visible can be used \(GPU 1: 5 uncorrected ECC errors"),
        ("49140 24564", r"1 of the 2 visible can be used \(GPU 1: 24.0 GiB"),
        ("mig", r"1 of the 2 visible can be used \(GPU 0: MIG is on"),
    ],
)
def test_a_card_that_vanished_or_broke_since_the_check_ends_the_wait(machine: Path, mode: str, reason: str) -> None:
    machine.write_text(mode)
    with pytest.raises(GpuUnavailableError, match=reason), _turn(TWO_GPUS, "late"):
        pytest.fail("It has GPUs that are not there.")


def test_a_driver_that_is_gone_ends_the_wait_with_its_own_words(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    machine.write_text("mismatch")
    said = r"not available now: .*version mismatch.*reboot"
    with pytest.raises(GpuUnavailableError, match=said), _turn(ONE_GPU, "late"):
        pytest.fail("It has a GPU without a driver.")


def test_a_lost_card_is_not_waited_for_and_the_others_are_used(machine: Path) -> None:
    machine.write_text("gone")
    with _turn(ONE_GPU, "one", say=pytest.fail) as gpus:
        assert gpus == ("GPU-5f3c1e0a-0000-4000-8000-00000000000a",)
    two = ONE_GPU.model_copy(update={"name": "2x48gb", "num_gpus": 2, "num_processes": 2})
    said = r"only 1 of the 2 visible can be used \(GPU 1: does not work, the driver says: GPU is lost\)"
    with pytest.raises(GpuUnavailableError, match=said), _turn(two, "two"):
        pytest.fail("It has a GPU that is lost.")


def test_leases_that_cannot_be_kept_are_an_error_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_GPU_LEASES", str(tmp_path / "mode"))
    reason = r"cannot be kept in .*/mode: .*set RLHF_GPU_LEASES"
    with pytest.raises(GpuUnavailableError, match=reason), _turn(ONE_GPU, "first"):
        pytest.fail("It has a GPU without a lease.")


def test_two_profiles_that_want_one_card_have_it_in_turn(machine: Path) -> None:
    machine.write_text("49140")
    other = ONE_GPU.model_copy(update={"name": "mine"})
    with _turn(ONE_GPU, "one") as gpus:
        assert gpus == (_first_of_fleet(0),)
        waiter = _Waiter(other, "other")
        assert waiter.spoke.wait(timeout=WAIT_S)
    assert waiter.got.wait(timeout=WAIT_S)
    assert waiter.gpus == (_first_of_fleet(0),)
    waiter.end()


def test_a_cancelled_run_waits_no_longer() -> None:
    with (
        _turn(TWO_GPUS, "first"),
        pytest.raises(WaitCancelledError),
        _turn(TWO_GPUS, "second", should_stop=lambda: True),
    ):
        pytest.fail("Both have the GPUs.")
    with _turn(TWO_GPUS, "third", say=pytest.fail):
        pass


def test_a_stage_without_gpus_waits_for_nobody() -> None:
    with _turn(TWO_GPUS, "first", say=pytest.fail), _turn(NO_GPU, "second", say=pytest.fail) as gpus:
        assert gpus == ()
