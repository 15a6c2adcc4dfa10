"""The time left is what people plan their evening by; it must follow the pace of this attempt and never be invented."""

from containers.contracts.names import StageName
from tasks.prefect_sync.progress import Pace, Progress, StageProgress


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def test_the_time_left_follows_the_pace_since_the_first_step_of_this_attempt() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.note(Progress(100, 200, "steps"))  # a resumed training
    assert pace.left_s is None
    clock.now_s += 20
    pace.note(Progress(110, 200, "steps"))
    assert pace.left_s == 180.0


def test_what_counts_anew_is_timed_anew() -> None:
    clock = Clock()
    pace = Pace(clock)
    for done, total in ((0, 10), (10, 10), (1, 400)):
        pace.note(Progress(done, total, "pairs"))
        clock.now_s += 5
    assert pace.left_s is None
    pace.note(Progress(3, 400, "pairs"))
    assert pace.left_s == 5 / 2 * 397


def test_a_share_stays_between_nothing_and_all() -> None:
    assert [Progress(*counts, "").percent for counts in ((1, 4), (5, 4), (-1, 4), (0, 0))] == [25.0, 100.0, 0.0, 0.0]
    assert str(Progress(1200, 2000, "steps loss 0.3")) == "1,200 of 2,000 steps loss 0.3"


def test_outside_a_run_nothing_is_shown_and_nothing_is_waited_for() -> None:
    progress = StageProgress(StageName.TRAIN_POLICY)
    progress.progress(1, 2, "steps")
    progress.metrics(())
    progress.end(succeeded=True)
