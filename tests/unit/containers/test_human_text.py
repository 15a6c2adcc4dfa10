"""Figures are read by people; a wrong digit, unit or sign here is wrong in every report."""

import pytest

from containers.contracts.outcome import Metric
from containers.formatting import (
    clean,
    duration,
    interval,
    markdown_text,
    metric_text,
    moment,
    number,
    one_line,
    percent,
    quantity,
    shorten,
    size,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.87345, "0.873"), (20142, "20,142"), (20142.4, "20,142"), (-0.5, "−0.500"), (0.0, "0"), (0, "0"), (7, "7"),
        (99.96, "100"), (9.996, "10.0"), (0.9996, "1.00"), (999.6, "1,000"), (0.0000123, "1.23e−5"), (None, "—"),
        (12.345, "12.3"), (0.001, "0.00100"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_numbers_have_three_significant_digits_and_thousands_separators(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_signed_number_shows_its_plus() -> None:
    assert [number(value, signed=True) for value in (1.62, -1.62, 0.0)] == ["+1.62", "−1.62", "0"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.34, "0.34 s"), (5.04, "5.0 s"), (9.96, "10 s"), (59.4, "59 s"), (59.7, "1 min 0 s"), (134, "2 min 14 s"),
        (3599.6, "1 h 0 min"), (3723, "1 h 2 min"), (200_000, "2 d 7 h"), (None, "—"),
    ],
)  # fmt: skip
def test_durations_read_as_people_say_them(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.9125, "91.2 %"), (0.0, "0 %"), (1.0, "100 %"), (0.0075, "0.75 %"), (-0.05, "−5.0 %"), (None, "—")],
)
def test_fractions_read_as_percent(value: float | None, text: str) -> None:
    assert percent(value) == text


def test_bytes_are_shown_in_binary_units() -> None:
    assert [size(value) for value in (2, 1536, 25_200_000_000, None)] == ["2 bytes", "1.50 KiB", "23.5 GiB", "—"]


def test_a_quantity_follows_its_unit() -> None:
    assert quantity(0.5, "fraction") == "50.0 %"
    assert quantity(134, "s") == "2 min 14 s"
    assert quantity(2024.0, "pairs") == "2,024 pairs"
    assert quantity(1.5, "score") == "1.50"
    assert quantity(0.4, "nats") == "0.400 nats"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (-4.67e-5, "nats", "≈0 nats"), (9e-5, "score", "≈0"), (0.0, "nats", "0 nats"), (1e-4, "score", "1.00e−4"),
        (4e-5, "fraction", "0.0040 %"), (4e-5, "learning rate", "4.00e−5 learning rate"),
    ],
)  # fmt: skip
def test_scores_and_nats_that_rounding_alone_can_make_are_about_zero(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_a_moment_reads_as_a_date_and_anything_else_stays_as_it_is() -> None:
    assert moment("2026-11-21T15:59:40+00:00") == "21 November 2026, 15:59 UTC"
    assert moment("yesterday\nnoon") == "yesterday noon"


def test_an_interval_names_its_unit_once() -> None:
    metric = Metric(name="kl", value=0.4, unit="nats", ci_low=0.33, ci_high=0.5, count=48, origin="estimated")
    assert interval(metric) == "0.330 to 0.500 nats"
    assert metric_text(metric) == "0.400 nats (0.330 to 0.500 nats, n = 48, estimated)"
    assert interval(metric.model_copy(update={"unit": "s", "ci_low": 50.0, "ci_high": 70.0})) == "50 s to 1 min 10 s"
    assert interval(metric.model_copy(update={"ci_low": None})) == ""


def test_controls_direction_marks_and_lone_surrogates_become_visible_and_encodable() -> None:
    text = clean("a\x00b\x1b[0m\u202ec\ud800\td\r\ne")
    assert text == "a\\x00b\\x1b[0m\\u202ec\\ud800\td\ne"
    text.encode("utf-8")


def test_a_shortened_text_says_how_long_it_was() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("x" * 1_200, 5) == "xxxxx… [first 5 of 1,200 characters]"
    assert one_line("a\n\n b", 10) == "a b"


def test_markdown_text_is_neither_html_nor_markup() -> None:
    assert markdown_text("<b>|x|</b>\n[a](b)") == "&lt;b&gt;\\|x\\|&lt;/b&gt; \\[a\\](b)"
