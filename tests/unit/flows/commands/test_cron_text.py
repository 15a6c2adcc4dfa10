"""A schedule with a slip of the pen is refused at once, and not when it should have started something."""

import pytest
from prefect.client.schemas.schedules import CronSchedule

from flows.commands.cron_text import cron_problem

TAKEN = ["0 6 * * 1", "*/5 0-6,8 1 jan mon-fri", "30 4 1,15 * 5", "0 0 * * 7", "15 10-22/3 * DEC SUN"]


@pytest.mark.parametrize("text", TAKEN)
def test_what_is_taken_prefect_takes_too(text: str) -> None:
    assert cron_problem(text) == ""
    CronSchedule(cron=text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0 25 * * 1", "hour: 25, wanted 0 to 23"),
        ("61 6 * * mo", "minute: 61, wanted 0 to 59; day of the week: mo, wanted 0 to 7"),
        ("5 0 0 * *", "day of the month: 0, wanted 1 to 31"),
        ("*/0 * * * *", "minute: */0, wanted 0 to 59"),
        ("6-2 * * * *", "minute: 6-2, wanted 0 to 59"),
        ("0,, * * * *", "minute: nothing, wanted 0 to 59"),
        ("0 6 * *", "4 fields, wanted five"),
        ("@daily", "1 fields, wanted five"),
    ],
)
def test_what_is_refused_is_named_with_its_bounds(text: str, problem: str) -> None:
    assert cron_problem(text).startswith(problem)
