"""Curves reach MLflow only through this file reader: a lost, doubled or invented point would falsify a run's page."""

import json
import math
import os
import threading
import time
from pathlib import Path

import pytest

from containers.harness.recorder import Recorder
from tasks.store import events
from tasks.store.events import EventFeed, MetricPoint, MetricsDelivery, Reconciliation, read_points


class Listener:
    def __init__(self) -> None:
        self.points: list[MetricPoint] = []
        self.progress: list[tuple[int, int, str]] = []
        self.notes: list[str] = []

    def feed(self, path: Path, *, from_end: bool = False) -> EventFeed:
        return EventFeed(
            path,
            on_metrics=self.points.extend,
            on_progress=lambda done, total, text: self.progress.append((done, total, text)),
            on_note=self.notes.append,
            from_end=from_end,
        )

    @property
    def steps(self) -> list[int]:
        return [point.step for point in self.points]


class ListSink:
    """A server in memory that can be down or slow."""

    def __init__(self) -> None:
        self.up = True
        # Cleared, the server answers no request until it is set again.
        self.answers = threading.Event()
        self.answers.set()
        self.is_busy = threading.Event()
        self.got: list[MetricPoint] = []
        self.batches: list[int] = []
        self.tried = threading.Event()

    def send_points(self, run_id: str, points: tuple[MetricPoint, ...]) -> bool:
        self.is_busy.set()
        assert self.answers.wait(timeout=60)
        self.tried.set()
        if self.up:
            self.got.extend(points)
            self.batches.append(len(points))
        return self.up

    def reconcile(self, run_id: str, events_path: Path) -> Reconciliation:
        raise AssertionError("not asked for here")


def metrics_line(step: int, **values: float) -> str:
    return json.dumps({"time": 1000.0 + step, "type": "metrics", "step": step, "values": values}) + "\n"


def test_everything_that_a_recorder_writes_is_handed_on(tmp_path: Path) -> None:
    path, heard = tmp_path / "events.jsonl", Listener()
    recorder, feed = Recorder(path), heard.feed(path)
    recorder.metrics(3, {"loss": 0.5, "grad_norm": math.nan, "reward": -math.inf})
    recorder.progress(3, 50, unit="steps", text="loss 0.5")
    recorder.note("no valid checkpoint, starting at 0")
    feed.poll()
    values = {point.key: point.value for point in heard.points}
    assert values["loss"] == 0.5
    assert math.isnan(values["grad_norm"])
    assert values["reward"] == -math.inf
    assert heard.steps == [3, 3, 3]
    assert heard.progress == [(3, 50, "steps loss 0.5")]
    assert heard.notes == ["no valid checkpoint, starting at 0"]
    assert feed.num_garbage == 0
    assert abs(heard.points[0].timestamp_ms / 1000 - time.time()) < 60


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    path, heard = tmp_path / "events.jsonl", Listener()
    feed = heard.feed(path)
    feed.poll()
    path.write_text(metrics_line(1, loss=1.0))
    feed.poll()
    feed.poll()
    assert heard.steps == [1]


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path, heard = tmp_path / "events.jsonl", Listener()
    feed, line = heard.feed(path), metrics_line(2, loss=0.25)
    path.write_text(metrics_line(1, loss=1.0) + line[:20])
    feed.poll()
    assert heard.steps == [1]
    with open(path, "a") as stream:
        stream.write(line[20:])
    feed.poll()
    assert heard.steps == [1, 2]
    assert feed.num_garbage == 0


@pytest.mark.parametrize(
    "garbage",
    [
        "not json",
        "[]",
        "null",
        '{"type": "metrics"}',
        '{"time": 1, "type": "metrics", "step": null, "values": {"a": 1}}',
        '{"time": 1, "type": "metrics", "step": 1, "values": {"a": null}}',
        '{"time": 1, "type": "metrics", "step": 1, "values": [1]}',
        '{"time": 1e999, "type": "metrics", "step": 1, "values": {"a": 1}}',
        '{"time": 1, "type": "surprise"}',
        "\x00\x00\x00",
        "[" * 100_000,
    ],
)
def test_a_line_that_cannot_be_read_is_skipped_and_counted(tmp_path: Path, garbage: str) -> None:
    path, heard = tmp_path / "events.jsonl", Listener()
    path.write_text(metrics_line(1, loss=1.0) + garbage + "\n" + metrics_line(2, loss=2.0))
    feed = heard.feed(path)
    feed.poll()
    assert heard.steps == [1, 2]
    assert feed.num_garbage == 1


def test_a_line_behind_the_half_line_of_a_killed_attempt_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(metrics_line(1, loss=1.0) + metrics_line(2, loss=2.0)[:30])
    Recorder(path).metrics(2, {"loss": 2.5})
    assert [(point.step, point.value) for point in read_points(path)] == [(1, 1.0), (2, 2.5)]


def test_a_replaced_or_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path, heard = tmp_path / "events.jsonl", Listener()
    feed = heard.feed(path)
    path.write_text(metrics_line(1, loss=1.0) + metrics_line(2, loss=1.0))
    feed.poll()
    other = tmp_path / "other"
    other.write_text(metrics_line(3, loss=1.0) + metrics_line(4, loss=1.0) + metrics_line(5, loss=1.0))
    os.replace(other, path)
    feed.poll()
    path.write_text(metrics_line(6, loss=1.0))
    feed.poll()
    assert heard.steps == [1, 2, 3, 4, 5, 6]


def test_what_an_earlier_attempt_wrote_can_be_left_out(tmp_path: Path) -> None:
    path, heard = tmp_path / "events.jsonl", Listener()
    path.write_text(metrics_line(1, loss=1.0))
    feed = heard.feed(path, from_end=True)
    with open(path, "a") as stream:
        stream.write(metrics_line(2, loss=2.0))
    feed.poll()
    assert heard.steps == [2]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_a_stage_puts_in_place_of_the_file_is_neither_followed_nor_waited_for(tmp_path: Path, kind: str) -> None:
    path, heard = tmp_path / "events.jsonl", Listener()
    secret = tmp_path / "host-file"
    secret.write_text(metrics_line(1, loss=1.0))
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    began = time.monotonic()
    heard.feed(path).poll()
    assert heard.points == []
    assert time.monotonic() - began < 1


def test_a_listener_that_fails_stops_neither_the_feed_nor_the_stage(tmp_path: Path) -> None:
    path, heard = tmp_path / "events.jsonl", Listener()
    path.write_text(json.dumps({"time": 1, "type": "note", "text": "x"}) + "\n" + metrics_line(1, loss=1.0))

    def fail(text: str) -> None:
        raise RuntimeError(text)

    EventFeed(path, on_metrics=heard.points.extend, on_note=fail).poll()
    assert heard.steps == [1]


def test_the_last_word_on_a_step_that_was_logged_twice_wins(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    steps = [*range(1, 18), *range(15, 31)]
    path.write_text("".join(metrics_line(step, loss=float(number)) for number, step in enumerate(steps)))
    points = read_points(path)
    assert sorted(point.step for point in points) == list(range(1, 31))
    assert next(point.value for point in points if point.step == 15) == 17.0


def test_adding_points_never_waits_for_a_slow_server() -> None:
    sink = ListSink()
    sink.answers.clear()
    delivery = MetricsDelivery(sink, "run", interval_s=0.01)
    delivery.add([MetricPoint("loss", 1.0, 1, 0)])
    assert sink.is_busy.wait(timeout=60)
    for step in range(1, 500):  # would hang if it waited
        delivery.add([MetricPoint("loss", 1.0, 1, step)])
    assert not sink.tried.is_set()
    sink.answers.set()
    assert delivery.close() == 0
    assert sorted(point.step for point in sink.got) == list(range(500))


def test_points_are_sent_in_batches_of_at_most_a_thousand_and_once_each() -> None:
    sink = ListSink()
    delivery = MetricsDelivery(sink, "run", interval_s=0.2)
    delivery.add([MetricPoint("loss", 1.0, 1, step) for step in range(2500)])
    delivery.add([MetricPoint("loss", 2.0, 1, 7)])
    assert delivery.close() == 0
    delivery.add([MetricPoint("loss", 3.0, 1, 8)])
    assert delivery.num_waiting == 0
    assert sink.batches == [1000, 1000, 500]
    assert [point.value for point in sink.got if point.step == 7] == [2.0]


def test_points_that_could_not_be_sent_wait_and_go_out_when_the_server_is_back() -> None:
    sink = ListSink()
    sink.up = False
    delivery = MetricsDelivery(sink, "run", interval_s=0.01, retry_s=0.05)
    delivery.add([MetricPoint("loss", math.nan, 1, step) for step in range(30)])
    assert sink.tried.wait(5)
    assert delivery.num_waiting == 30
    sink.up = True
    assert delivery.close() == 0
    assert len(sink.got) == 30


def test_closing_with_a_dead_server_says_how_much_was_not_sent() -> None:
    sink = ListSink()
    sink.up = False
    delivery = MetricsDelivery(sink, "run", interval_s=0.01)
    delivery.add([MetricPoint("loss", 1.0, 1, step) for step in range(30)])
    assert delivery.close() == 30


def test_closing_does_not_wait_for_a_server_that_hangs() -> None:
    sink = ListSink()
    sink.answers.clear()
    delivery = MetricsDelivery(sink, "run", interval_s=0.01)
    delivery.add([MetricPoint("loss", 1.0, 1, 1)])
    assert sink.is_busy.wait(timeout=60)
    assert delivery.close(limit_s=0.1) == 1
    assert not sink.tried.is_set()
    sink.answers.set()


def test_a_line_longer_than_any_that_a_stage_writes_is_skipped_and_what_follows_is_read(tmp_path: Path) -> None:
    """Five MiB without an end: the feed must neither hold them in memory nor wait for their end forever."""
    path, heard = tmp_path / "events.jsonl", Listener()
    path.write_text(metrics_line(1, loss=1.0) + "x" * (9 * 1024**2) + "\n" + metrics_line(2, loss=2.0))
    feed = heard.feed(path)
    polls = 1
    while feed.poll():
        polls += 1
    assert polls < 6
    assert heard.steps == [1, 2]
    assert feed.num_garbage >= 1


def test_what_a_later_attempt_wrote_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(metrics_line(1, loss=1.0))
    end = path.stat().st_size
    with open(path, "a") as stream:
        stream.write(metrics_line(2, loss=2.0))
    assert [point.step for point in read_points(path, up_to_bytes=end)] == [1]
    assert [point.step for point in read_points(path, up_to_bytes=0)] == []


def test_blank_lines_and_signs_for_the_program_that_stops_a_stage_are_no_garbage(tmp_path: Path) -> None:
    path, heard = tmp_path / "events.jsonl", Listener()
    path.write_text(metrics_line(1, loss=1.0) + "\n")
    Recorder(path).stopping(stops_every=2, save_s=1.0)
    feed = heard.feed(path)
    feed.poll()
    assert (heard.steps, heard.progress, heard.notes, feed.num_garbage) == ([1], [], [], 0)


def test_points_for_a_dead_server_take_a_bounded_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MAX_WAITING_POINTS", 10)
    sink = ListSink()
    sink.up = False
    delivery = MetricsDelivery(sink, "run", interval_s=60)
    delivery.add([MetricPoint("loss", 1.0, 1, step) for step in range(25)])
    assert delivery.num_waiting == 10
    assert delivery.close() == 10
