"""A schedule with a slip of the pen is refused at once, and not when it should have started something."""

import argparse

import pytest
from prefect.client.schemas.schedules import CronSchedule

from flows.cli.serve import cron

TAKEN = ["0 6 * * 1", "*/5 0-6,8 1 jan mon-fri", "30 4 1,15 * 5", "0 0 * * 7", "15 10-22/3 * DEC SUN"]


@pytest.mark.parametrize("text", TAKEN)
def test_what_is_taken_prefect_takes_too(text: str) -> None:
    assert cron(text) == text
    CronSchedule(cron=text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0 25 * * 1", "bad hour"),
        ("61 6 * * mon", "bad minute"),
        ("0 6 * * mo", "bad day-of-week"),
        ("5 0 0 * *", "bad day-of-month"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("*/0 * * * *", "bad minute"),
        ("6-2 * * * *", "bad minute"),
        ("0,, * * * *", "bad minute"),
        ("0 6 * *", "wrong number of fields"),
        ("0 0 0 6 * * 1", "wrong number of fields"),
        ("@daily", "wrong number of fields"),
    ],
)
def test_what_is_refused_is_named_with_what_is_wanted(text: str, problem: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        cron(text)
    assert str(refused.value).startswith(f"`{text}` is no schedule: {problem}. Wanted: minute (0 to 59), hour")
