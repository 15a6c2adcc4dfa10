"""SIGTERM ends a stage at once, but lets a training end its step, where that can end well."""

import signal
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.harness.stopping import StageCancelledError, StopSignal, stopped_by


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before, hook = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    yield
    signal.signal(signal.SIGTERM, before)
    sys.unraisablehook = hook


def _listening(work: Path | None = None) -> StopSignal:
    stop = StopSignal(work)
    stop.listen()
    return stop


def _terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_outside_a_training_the_stage_ends_at_once() -> None:
    _listening()
    with pytest.raises(StageCancelledError, match="it goes on from its last checkpoint"):
        _terminate()


def test_within_a_training_the_first_signal_waits_for_the_step_and_the_second_does_not() -> None:
    stop = _listening()
    steps = []
    with pytest.raises(StageCancelledError), stop.after_step():
        _terminate()
        steps.append(stop.requested)
        _terminate()
        steps.append(False)
    assert steps == [True]


def test_a_request_that_nobody_met_ends_the_stage_when_the_training_is_over() -> None:
    stop = _listening()
    over = []
    with pytest.raises(StageCancelledError), stop.after_step():
        _terminate()
        over.append(True)
    assert over


def test_after_a_training_the_stage_ends_at_once_again() -> None:
    stop = _listening()
    with stop.after_step():
        pass
    with pytest.raises(StageCancelledError):
        _terminate()


def test_where_another_rank_has_failed_no_step_can_end(tmp_path: Path) -> None:
    """torchrun then stops the others with SIGTERM, and they would wait for it in the next collective."""
    stop = _listening(tmp_path)
    (tmp_path / "failure-rank-1.json").write_text("{}")
    with pytest.raises(StageCancelledError), stop.after_step():
        _terminate()
        raise AssertionError("unreachable")
    assert not stop.requested


def test_an_outcome_is_written_to_its_end() -> None:
    stop = _listening()
    stop.end()
    _terminate()


class Held:
    """What a weak reference can refer to."""


def test_a_signal_whose_exception_a_finalizer_swallows_is_answered_all_the_same() -> None:
    _listening()
    held, fired = Held(), []

    def callback(gone: object) -> None:
        fired.append(gone)
        _terminate()

    reference = weakref.ref(held, callback)
    with pytest.raises(StageCancelledError):
        del held  # the callback runs here, and what it raises is dropped
        assert fired == [reference]
        for _ in range(200):
            time.sleep(0.02)


@pytest.mark.parametrize("cause", [True, False], ids=["raised from it", "raised while it was handled"])
def test_a_stop_that_a_library_turned_into_its_own_error_is_still_a_stop(cause: bool) -> None:
    def load() -> None:
        try:
            raise StageCancelledError
        except StageCancelledError as error:
            if cause:
                raise ImportError("initialization failed") from error
            raise ImportError("initialization failed")  # noqa: B904 - as C extensions do

    with pytest.raises(RuntimeError) as caught:
        try:
            load()
        except ImportError as error:
            raise RuntimeError("no model") from error
    assert isinstance(stopped_by(caught.value), StageCancelledError)
    other = ValueError("other")
    assert stopped_by(other) is other
