"""A supervisor's SIGTERM must run every `finally`, and the exit code must tell a shell which signal it was."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.signals import (
    EndedBySignal,
    exit_code_after,
    how_it_ended,
    signals_end_the_block,
    signals_held_back,
    signals_ignored,
)


@pytest.mark.parametrize(("number", "name", "code"), [(signal.SIGTERM, "SIGTERM", 143), (signal.SIGHUP, "SIGHUP", 129)])
def test_an_ending_signal_unwinds_the_block_and_says_its_name(number: signal.Signals, name: str, code: int) -> None:
    cleaned_up = False
    with pytest.raises(EndedBySignal) as caught, signals_end_the_block():
        try:
            signal.raise_signal(number)
        finally:
            cleaned_up = True
    assert cleaned_up
    assert how_it_ended(caught.value) == f"Stopped by {name}"
    assert exit_code_after(caught.value) == code
    assert signal.getsignal(number) is signal.SIG_DFL


def test_ctrl_c_has_its_own_word_and_code() -> None:
    assert (how_it_ended(KeyboardInterrupt()), exit_code_after(KeyboardInterrupt())) == ("Interrupted", 130)


def test_a_signal_that_somebody_else_handles_is_left_to_them() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with signals_end_the_block():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_nothing_interrupts_while_signals_are_ignored() -> None:
    with signals_end_the_block(), signals_ignored():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)


def test_a_program_that_catches_nothing_exits_with_the_code_of_the_signal(project: Path) -> None:
    code = (
        "import signal; from flows.signals import signals_end_the_block\n"
        "with signals_end_the_block(): signal.raise_signal(signal.SIGTERM)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (143, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_held_back_takes_effect_when_the_block_is_done(number: signal.Signals) -> None:
    done = []
    with pytest.raises((KeyboardInterrupt, EndedBySignal)), signals_end_the_block():
        with signals_held_back():
            signal.raise_signal(number)
            done.append("the pid is noted")
        done.append("never")
    assert done == ["the pid is noted"]


def test_a_signal_that_is_ignored_stays_so_while_signals_are_held_back() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with signals_end_the_block(), signals_held_back():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
