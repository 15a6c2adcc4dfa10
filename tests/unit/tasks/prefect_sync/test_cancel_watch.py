"""Somebody cancels, and the run learns of it without ever waiting for the server."""

import threading
import time
from collections.abc import Callable

import pytest
from prefect.client.schemas.objects import StateType

from tasks.prefect_sync.api import PrefectAwayError
from tasks.prefect_sync.cancellation import DELETED, CancelWatch


def within(condition: Callable[[], bool], limit_s: float = 5.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("state", [StateType.CANCELLING, StateType.CANCELLED])
def test_a_cancelled_run_stops(state: StateType) -> None:
    now = [StateType.RUNNING]
    watch = CancelWatch(lambda: now[0], every_s=0.01)
    time.sleep(0.1)
    assert not watch.should_stop()
    now[0] = state
    assert within(watch.should_stop)


@pytest.mark.parametrize("state", [StateType.RUNNING, StateType.PENDING, None])
def test_a_run_that_nobody_cancelled_goes_on(state: StateType | None) -> None:
    asked = []
    watch = CancelWatch(lambda: asked.append(1) or state, every_s=0.01)  # type: ignore[func-returns-value]
    assert within(lambda: len(asked) > 3)
    assert not watch.should_stop()
    watch.close()


def test_a_run_that_the_server_had_and_has_no_more_was_deleted_and_stops() -> None:
    now: list[StateType | None] = [StateType.RUNNING]
    watch = CancelWatch(lambda: now[0], had_run=lambda: True, every_s=0.01)
    time.sleep(0.1)
    assert not watch.should_stop()
    now[0] = None
    assert within(watch.should_stop)
    assert watch.why == DELETED


def test_a_run_of_another_database_goes_on_and_that_is_said_once() -> None:
    asked, said = [], []
    watch = CancelWatch(
        lambda: None,
        had_run=lambda: bool(asked.append(1)),  # type: ignore[func-returns-value]
        on_forgotten=lambda: said.append(1),
        every_s=0.01,
    )
    assert within(lambda: len(asked) > 3)
    assert not watch.should_stop()
    assert said == [1]
    watch.close()


def test_a_lost_server_cancels_nothing_and_its_return_is_told() -> None:
    is_away, returned = [True], []

    def state() -> StateType:
        if is_away[0]:
            raise PrefectAwayError("refused")
        return StateType.RUNNING

    watch = CancelWatch(state, on_return=lambda: returned.append(1), every_s=0.01)
    assert within(lambda: watch.is_away)
    assert not watch.should_stop()
    is_away[0] = False
    assert within(lambda: returned == [1])
    assert (watch.is_away, watch.was_away) == (False, True)
    watch.close()


def test_nobody_waits_for_a_server_that_hangs() -> None:
    is_asked, forever = threading.Event(), threading.Event()

    def hang() -> None:
        is_asked.set()
        forever.wait(timeout=60)

    watch = CancelWatch(hang, every_s=0.01)
    assert is_asked.wait(timeout=60)
    assert not watch.should_stop()
    watch.close()
    assert not forever.is_set()
    forever.set()
