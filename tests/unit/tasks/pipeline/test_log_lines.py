"""Prefect's database must survive a night of progress bars, and a person must find the last words of what failed."""

import pytest

from tasks.pipeline.log import LogLines

# As TRL's trainers, tqdm and our own recorder print progress.
PROGRESS = [
    "step 12 of 200 loss 0.6527",
    " 43%|████▎     | 86/200 [00:31<00:41,  2.74it/s]",
    "Loading weights:  50%|#####     | 1/2 [00:00<00:00]",
    "86/200 [00:31<00:41,  2.74s/it]",
]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("line", PROGRESS)
def test_progress_comes_once_in_a_while_and_at_the_end(line: str) -> None:
    said: list[str] = []
    clock = Clock()
    lines = LogLines(said.append, clock=clock)
    for second in range(61):
        clock.now_s = 1000.0 + second
        lines.add(line)
    assert len(said) == 3
    lines.add(f"{line} last")
    lines.close()
    assert said[-1] == f"{line} last"
    assert len(said) == 4


def test_what_is_no_progress_all_comes_through() -> None:
    said: list[str] = []
    lines = LogLines(said.append)
    texts = ["step by step", "99% of the rows are kept", "epoch 1", "", "Traceback (most recent call last):"]
    for text in texts:
        lines.add(text)
    lines.close()
    assert said == texts


def test_a_flood_is_cut_says_so_and_ends_with_the_last_words() -> None:
    said: list[str] = []
    lines = LogLines(said.append, most=10, clock=Clock())
    for number in range(1000):
        lines.add(f"line {number}")
    lines.close()
    assert said[:10] == [f"line {number}" for number in range(10)]
    assert said[10] == "… 970 lines are left out here; the stage's log file has them all."
    assert said[11:] == [f"line {number}" for number in range(980, 1000)]


def test_after_a_flood_the_log_goes_on() -> None:
    said: list[str] = []
    clock = Clock()
    lines = LogLines(said.append, most=1, clock=clock)
    for text in ("a", "b", "c"):
        lines.add(text)
    clock.now_s += 11
    lines.add("d")
    lines.close()
    assert said == ["a", "… 2 lines are left out here; the stage's log file has them all.", "d"]
