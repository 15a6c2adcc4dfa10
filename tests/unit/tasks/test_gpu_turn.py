"""Two runs on one machine: their stages have the GPUs in turn, and the second knows behind whom it waits."""

import threading
from pathlib import Path

import pytest

from containers.contracts.hardware import GpuProfile
from tasks.gpu_turn import gpu_turn
from tasks.stage_lock import WaitCancelledError

TWO_GPUS = GpuProfile(name="2x48gb", num_gpus=2, num_processes=2)
NO_GPU = GpuProfile(name="cpu", num_gpus=0, precision="float32")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_the_second_stage_gets_the_gpus_when_the_first_is_done_and_says_behind_whom_it_waits() -> None:
    order: list[str] = []
    waits = threading.Event()

    def second() -> None:
        def said(line: str) -> None:
            order.append(line)
            waits.set()

        with gpu_turn(TWO_GPUS, holder="second", say=said, should_stop=lambda: False):
            order.append("second works")

    with gpu_turn(TWO_GPUS, holder="first 2026, train_policy", say=order.append, should_stop=lambda: False):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(timeout=30)
        order.append("first ends")
    thread.join(timeout=30)
    line, *rest = order
    assert line.startswith("Run first 2026, train_policy (process ") and line.endswith("has the GPUs; waiting for it.")
    assert rest == ["first ends", "second works"]


def test_a_cancelled_run_waits_no_longer() -> None:
    with (
        gpu_turn(TWO_GPUS, holder="first", say=lambda line: None, should_stop=lambda: False),
        pytest.raises(WaitCancelledError),
        gpu_turn(TWO_GPUS, holder="second", say=lambda line: None, should_stop=lambda: True),
    ):
        pytest.fail("Both have the GPUs.")


def test_a_stage_without_gpus_waits_for_nobody() -> None:
    with (
        gpu_turn(TWO_GPUS, holder="first", say=pytest.fail, should_stop=lambda: False),
        gpu_turn(NO_GPU, holder="second", say=pytest.fail, should_stop=lambda: False),
    ):
        pass
