"""A server that comes up beside the run: its error must neither be lost nor end the run, and its wait must end."""

import threading
import time

from flows.servers.process import ServerError
from flows.servers.start import WITHOUT_MLFLOW, BackgroundStart


def test_a_server_that_answers_is_up_for_everybody_who_waits() -> None:
    answers = threading.Event()
    start = BackgroundStart(lambda given_up: answers.wait(timeout=10), say=lambda text: None)
    assert not start.is_up
    start.wait(limit_s=0.01)
    assert not start.is_up, "the limit is shorter than the start"
    answers.set()
    start.wait()
    assert start.is_up


def test_a_server_that_does_not_start_is_said_at_once_with_its_reason_and_ends_nothing() -> None:
    said: list[str] = []

    def fails(given_up: threading.Event) -> bool:
        raise ServerError("file is not a database")

    start = BackgroundStart(fails, say=said.append)
    start.wait()
    assert said == [f"file is not a database\n{WITHOUT_MLFLOW}"]
    assert start.problem == "file is not a database"
    assert not start.is_up


def test_a_start_that_nobody_waits_for_any_more_ends() -> None:
    def until_given_up(given_up: threading.Event) -> bool:
        return not given_up.wait(timeout=60)

    start = BackgroundStart(until_given_up, say=lambda text: None)
    began = time.monotonic()
    start.give_up()
    assert time.monotonic() - began < 5
    assert not start.is_up
