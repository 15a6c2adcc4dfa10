"""Docker hands out chunks of up to 16 KiB, not lines; progress bars and floods must not fill a database."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.launch.stage_log import BURST_LINES, MAX_LINE_BYTES, TAIL_LINES, LineSplitter, StageLog


def split(*chunks: bytes) -> list[tuple[str, bool]]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + list(splitter.finish())


def test_lines_are_joined_over_chunks_and_cut_at_every_kind_of_line_end() -> None:
    assert split(b"one\ntw", b"o\r\nth", b"ree\rfour") == [
        ("one", False),
        ("two", False),
        ("three", True),
        ("four", False),
    ]


def test_a_line_end_that_falls_between_two_chunks_is_one_line_end() -> None:
    assert split(b"one\r", b"\ntwo\n") == [("one", False), ("two", False)]


def test_a_character_that_falls_between_two_chunks_survives() -> None:
    assert split(b"gr", "ü".encode()[:1], "ü".encode()[1:] + b"n\n") == [("grün", False)]


def test_a_line_without_end_comes_in_bounded_pieces() -> None:
    lines = split(b"x" * (3 * MAX_LINE_BYTES), b"y\n")
    assert all(len(text) <= MAX_LINE_BYTES for text, _ in lines)
    assert "".join(text for text, _ in lines) == "x" * (3 * MAX_LINE_BYTES) + "y"


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_where_the_chunks_are_cut_changes_nothing(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert split(*(data[a:b] for a, b in itertools.pairwise(edges))) == split(data)


@pytest.fixture
def seen() -> list[str]:
    return []


def test_the_file_has_everything_and_the_tail_has_the_end(tmp_path: Path, seen: list[str]) -> None:
    with StageLog(tmp_path / "stage.log", seen.append) as log:
        log.feed(b"".join(b"line %d\n" % number for number in range(1000)))
        log.finish()
    assert (tmp_path / "stage.log").read_text().splitlines() == [f"line {number}" for number in range(1000)]
    assert log.tail == tuple(f"line {number}" for number in range(1000 - TAIL_LINES, 1000))


def test_a_flood_reaches_the_caller_thinned_out_and_counted(tmp_path: Path, seen: list[str]) -> None:
    with StageLog(tmp_path / "stage.log", seen.append, clock=lambda: 0.0) as log:
        log.feed(b"y\n" * 10_000)
        log.finish()
    assert seen[:-1] == ["y"] * BURST_LINES
    assert f"{10_000 - BURST_LINES:,} lines left out" in seen[-1]


def test_a_progress_bar_is_shown_now_and_then(tmp_path: Path, seen: list[str]) -> None:
    now = [0.0]
    with StageLog(tmp_path / "stage.log", seen.append, clock=lambda: now[0]) as log:
        for step in range(100):
            now[0] = step / 10
            log.feed(b"%d%%\rx" % step)
        log.feed(b"done\n")
    assert len(seen) < 8
    assert seen[-1].endswith("done")


def test_the_file_is_capped_and_says_so(tmp_path: Path, seen: list[str]) -> None:
    path = tmp_path / "stage.log"
    with StageLog(path, seen.append, max_bytes=1000) as log:
        for _ in range(1000):
            log.feed(b"0123456789\n")
    assert path.stat().st_size < 1200
    assert "the rest is not kept here" in path.read_text().splitlines()[-1]
    assert log.tail[-1] == "0123456789", "the tail goes on"
