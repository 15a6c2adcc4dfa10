"""How long a stage may take to stop follows from its own steps and saves: no fixed time is right for every model."""

import json
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.stop_grace import LONGEST_S, SHORTEST_S, StopGrace, stop_grace
from containers.harness.recorder import Recorder


def progress(at_s: float, done: int) -> dict[str, Any]:
    return {"type": "progress", "time": at_s, "done": done, "total": 1000, "unit": "steps", "text": ""}


def stopping(save_s: float | None, *, stops_every: int = 1) -> dict[str, Any]:
    return {"type": "stopping", "time": 0, "stops_every": stops_every, "save_s": save_s}


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def write(path: Path, *found: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(event) + "\n" for event in found))


def test_without_a_measurement_it_is_the_shortest(events: Path) -> None:
    assert stop_grace(events).seconds == SHORTEST_S
    write(events, {"type": "progress", "time": 0, "done": 3, "total": 9, "unit": "rows", "text": ""})
    assert stop_grace(events).seconds == SHORTEST_S


def test_only_progress_in_steps_is_measured(events: Path) -> None:
    """Before the first step, a training counts the rows that it tokenizes; a point of a curve is no progress."""
    rows = [{**progress(at_s, done), "unit": unit} for unit in ("rows", "tokens") for at_s, done in ((0, 0), (300, 1))]
    points = [{**progress(at_s, done), "type": "metrics"} for at_s, done in ((300, 0), (700, 1))]
    write(events, stopping(None), *rows, *points, progress(700, 0), progress(740, 1), stopping(10.0))
    assert stop_grace(events).seconds == pytest.approx(1.5 * (40 + 10))


def test_an_8b_step_of_30_s_that_stops_every_second_one_and_saves_in_20_s_gets_120_s(events: Path) -> None:
    write(
        events,
        stopping(None, stops_every=2),
        progress(0, 0),
        progress(30, 1),
        progress(60, 2),
        stopping(20.0, stops_every=2),
    )
    grace = stop_grace(events)
    assert grace.seconds == pytest.approx(1.5 * (2 * 30 + 20))
    assert "30.0 s a step, stops every 2 steps, 20.0 s to save" in str(grace)


def test_tiny_steps_keep_the_shortest(events: Path) -> None:
    write(events, stopping(None), progress(0, 0), progress(1, 40), stopping(0.2))
    assert stop_grace(events).seconds == SHORTEST_S


def test_steps_of_hundredths_of_a_second_count_as_what_they_are(events: Path) -> None:
    steps = [progress(0.01 * done, done) for done in range(5)]
    write(events, stopping(None, stops_every=1000), *steps, stopping(10.0, stops_every=1000))
    assert stop_grace(events).seconds == pytest.approx(1.5 * (1000 * 0.01 + 10))


def test_a_clock_that_was_set_back_makes_no_negative_time(events: Path) -> None:
    write(events, stopping(None), progress(1000, 0), progress(0, 1), stopping(20.0))
    assert stop_grace(events) == StopGrace(30.0, "measured: 0.0 s a step, stops every 1 steps, 20.0 s to save")


def test_steps_are_measured_from_the_first_event_on_where_nothing_says_that_training_began(events: Path) -> None:
    write(events, progress(0, 0), progress(40, 1))
    assert stop_grace(events).seconds == pytest.approx(1.5 * (40 + 30))


def test_before_the_first_save_time_for_one_is_left_all_the_same(events: Path) -> None:
    """Killed then, a training would have nothing to go on from."""
    write(events, stopping(None), progress(0, 0), progress(4, 4))
    assert stop_grace(events).seconds == pytest.approx(1.5 * (1 + 30))
    assert "no save yet" in str(stop_grace(events))


def test_the_days_between_two_attempts_are_no_step(events: Path) -> None:
    two_days_s = 2 * 24 * 3600
    again = (progress(two_days_s, 42), stopping(None), progress(two_days_s, 42), progress(two_days_s + 2, 43))
    write(events, stopping(None), progress(0, 0), progress(2, 1), stopping(1.0), progress(80, 40), *again)
    assert stop_grace(events).seconds == SHORTEST_S


def test_a_slow_step_of_long_ago_counts_no_more(events: Path) -> None:
    times = [0, 400, *(400 + 30 * number for number in range(1, 21))]
    steps = [progress(at_s, done) for done, at_s in enumerate(times)]
    write(events, stopping(None), *steps[:-1], stopping(10.0))
    assert stop_grace(events).seconds == pytest.approx(1.5 * (400 + 10)), "it is one of the last twenty"
    write(events, stopping(None), *steps, stopping(10.0))
    assert stop_grace(events).seconds == pytest.approx(1.5 * (30 + 10))


def test_progress_that_is_told_twice_or_goes_back_is_no_step(events: Path) -> None:
    told = [progress(0, 4), progress(300, 4), progress(600, 2), progress(640, 3)]
    write(events, stopping(None), *told, stopping(10.0))
    assert stop_grace(events).seconds == pytest.approx(1.5 * (40 + 10))
    write(events, stopping(None), *told[:3])
    assert stop_grace(events) == StopGrace(SHORTEST_S, "no step was measured")


def test_a_stage_has_20_s_to_15_minutes_as_the_documentation_says(events: Path, project: Path) -> None:
    text = (project / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert "20 s, at most 15 minutes" in " ".join(text.split())
    assert (SHORTEST_S, LONGEST_S) == (20, 15 * 60)


def test_there_is_a_longest(events: Path) -> None:
    write(events, stopping(None), progress(0, 0), progress(5000, 1), stopping(3000.0))
    assert stop_grace(events).seconds == LONGEST_S


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "null",
        '{"type": "progress", "unit": "steps", "done": "x", "time": 1}',
        '{"type": "progress", "unit": "steps", "done": 1e400, "time": NaN}',
        '{"type": "stopping", "stops_every": Infinity, "save_s": -1e300}',
        '{"type": "working", "stops_every": 20, "save_s": 300}',
        "[" * 100_000,
    ],
)
def test_what_a_stage_writes_there_is_not_trusted(events: Path, line: str) -> None:
    write(events, stopping(None), progress(0, 0), progress(40, 1), stopping(10.0))
    before = stop_grace(events).seconds
    assert SHORTEST_S < before < LONGEST_S
    with events.open("a") as stream:
        stream.write(line + "\n")
    assert stop_grace(events).seconds == before


def test_a_link_is_not_followed(events: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", stopping(None), progress(0, 0), progress(100, 1), stopping(1.0))
    events.symlink_to(tmp_path / "other")
    assert stop_grace(events).seconds == SHORTEST_S


def test_the_recorder_writes_what_is_read_here(events: Path) -> None:
    recorder = Recorder(events)
    recorder.stopping(stops_every=6)
    recorder.progress(0, 10, unit="steps")
    recorder.progress(1, 10, unit="steps")
    recorder.stopping(stops_every=6, save_s=20.0)
    assert "stops every 6 steps, 20.0 s to save" in str(stop_grace(events))
