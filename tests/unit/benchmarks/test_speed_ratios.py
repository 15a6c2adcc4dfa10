"""A ratio from one draw of data is an anecdote, and one whose spread mixes data and clock cannot be weighed."""

import argparse
import random
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.speed_ratios import (
    CALIBRATION_SEED,
    Run,
    Runs,
    alternate,
    chance_of_enclosing_median,
    medians_of_draws,
    order_of,
    places_of,
    ratio,
    results_by_draw,
    tried,
)
from benchmarks.speed_table import check_seeds, spread_line, table, whole

PLACE = Path("draw-7")


def run(draw: int, number: int, seconds: float) -> Run:
    return {"draw": draw, "round": number, "seconds": seconds, "memory": 0}


def test_a_ratio_is_the_median_of_the_draws_and_tells_data_from_clock() -> None:
    runs: Runs = {
        "theirs": [run(1, 1, 4.0), run(1, 2, 4.4), run(2, 1, 9.0), run(2, 2, 9.0)],
        "ours": [run(1, 1, 2.0), run(1, 2, 2.0), run(2, 1, 3.0), run(2, 2, 3.0)],
    }
    found = ratio(runs, "theirs", ours="ours")
    assert found.of_draws == pytest.approx((2.1, 3.0))
    assert found.median == pytest.approx(2.55)
    assert found.clock == pytest.approx(0.2 / 2.1)
    assert str(found) == "2.55 (2.10 to 3.00)"


def test_a_machine_that_is_slow_for_a_round_does_not_move_the_ratio() -> None:
    slow = {1: 1.0, 2: 3.0}
    times = [(draw, number) for number in (1, 2) for draw in (1, 2)]
    runs = {
        name: [run(draw, number, taken * slow[number]) for draw, number in times]
        for name, taken in (("theirs", 5.0), ("ours", 2.0))
    }
    found = ratio(runs, "theirs", ours="ours")
    assert (found.median, found.clock) == (pytest.approx(2.5), pytest.approx(0.0))


def test_a_way_of_the_first_round_is_compared_with_ours_of_that_round() -> None:
    runs = {"theirs": [run(1, 1, 8.0)], "ours": [run(1, 2, 100.0), run(1, 1, 2.0)]}
    assert ratio(runs, "theirs", ours="ours").of_draws == (4.0,)


def test_two_ways_that_never_met_have_no_ratio() -> None:
    with pytest.raises(ValueError, match="never measured in one round"):
        ratio({"theirs": [run(1, 1, 8.0)], "ours": [run(2, 1, 2.0)]}, "theirs", ours="ours")


def test_in_two_rounds_each_of_two_ways_is_once_the_first() -> None:
    for draw in range(20):
        first, second = (order_of(["a", "b", "c"], draw=draw, round_number=number) for number in (1, 2))
        assert sorted(first) == ["a", "b", "c"]
        assert second == first[::-1]


def test_over_the_draws_no_way_is_always_the_first() -> None:
    begins = Counter(order_of(["a", "b", "c"], draw=draw, round_number=1)[0] for draw in range(300))
    assert min(begins[way] for way in "abc") > 70


def test_every_way_is_measured_on_every_draw_in_every_round_in_the_drawn_order() -> None:
    calls: list[tuple[str, str]] = []

    def measure(name: str, folder: Path) -> Run:
        calls.append((folder.name, name))
        return {"seconds": 1.0, "memory": 0}

    folders = {1: Path("one"), 2: Path("two")}
    found = alternate(["a", "b", "slow"], folders=folders, rounds=2, measure=measure, once=["slow"])
    assert [(one["draw"], one["round"]) for one in found["a"]] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert [(one["draw"], one["round"]) for one in found["slow"]] == [(1, 1), (2, 1)]
    first = [name for place, name in calls[:3]]
    assert first == order_of(["a", "b", "slow"], draw=1, round_number=1)
    again = [name for place, name in calls[6:] if place == "one"]
    assert again == [name for name in first[::-1] if name != "slow"]


def test_ways_that_need_what_others_left_keep_their_order() -> None:
    calls: list[str] = []

    def measure(name: str, _folder: Path) -> Run:
        calls.append(name)
        return {"seconds": 1.0, "memory": 0}

    alternate(["c", "a", "b"], folders={4: PLACE}, rounds=2, measure=measure, in_order=True)
    assert calls == ["c", "a", "b", "c", "a", "b"]


def test_a_setting_that_was_fastest_by_luck_is_measured_again() -> None:
    times = {"lucky": iter([0.95, 1.2, 1.3]), "best": iter([1.0, 1.0, 1.0]), "slow": iter([2.0])}
    found = tried(list(times), folder=PLACE, measure=lambda name, _: {"seconds": next(times[name]), "memory": 0})
    assert found.seconds == {"lucky": 1.2, "best": 1.0, "slow": 2.0}
    assert found.best == "best"
    assert found.line("TRL").startswith(
        "Settings of TRL, tried on a draw that is not compared: best 1.0 s; lucky 1.2 s"
    )


@pytest.mark.parametrize("seeds", [[CALIBRATION_SEED, 1], [3, 3]])
def test_the_draw_on_which_settings_were_chosen_is_never_compared(
    seeds: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        check_seeds(argparse.ArgumentParser(), seeds)
    assert "name each once, and not 0" in capsys.readouterr().err


@pytest.mark.parametrize("num_draws", [3, 5, 8])
def test_the_least_and_the_most_enclose_the_median_as_often_as_said(num_draws: int) -> None:
    rng = random.Random(1)  # noqa: S311 - a simulation, no secret
    draws = [[rng.expovariate(1.0) for _ in range(num_draws)] for _ in range(4000)]
    median = 0.6931471805599453
    share = statistics.mean(min(drawn) <= median <= max(drawn) for drawn in draws)
    assert share == pytest.approx(chance_of_enclosing_median(num_draws), abs=0.02)
    assert f"{chance_of_enclosing_median(num_draws):.0%} of cases" in spread_line(num_draws)


def test_settings_that_were_only_tried_must_agree_too() -> None:
    results, taken = iter([0.5, 0.5, 0.7]), iter([1, 5, 9])
    peer = tried(
        ["a", "b", "c"], folder=PLACE, measure=lambda *_: {"seconds": float(next(taken)), "loss": next(results)}
    )
    runs: Runs = {"ours": [{**run(1, 1, 2.0), "loss": 0.4}], "theirs": [{**run(1, 1, 3.0), "loss": 0.4}]}
    losses = [[one["loss"] for one in of_draw] for of_draw in results_by_draw(runs, peer)]
    assert sorted(losses) == [[0.4, 0.4], [0.5, 0.5, 0.7]]


def test_two_draws_are_said_to_enclose_nothing() -> None:
    assert "enclose" not in spread_line(2)


def test_measured_draws_are_placed_among_all_seeds() -> None:
    said = places_of([10.0, 90.0], [float(value) for value in range(1, 101)])
    assert said.startswith("50.50 in the median of 100 seeds (5 to 95 %: 5.95 to 95.05)")
    assert said.endswith("have 10.00, 90.00, which 10%, 90% do not exceed")


def test_the_table_adds_draws_and_takes_the_median_of_rounds() -> None:
    runs: Runs = {
        "theirs": [{**run(1, 1, 4.0), "memory": 4 * 2**20}, {**run(2, 1, 8.0), "memory": 2 * 2**20}],
        "ours": [{**run(1, number, 2.0), "memory": 2**20} for number in (1, 2)] + [run(2, 1, 2.0)],
    }
    assert medians_of_draws(runs["ours"], "seconds") == [2.0, 2.0]
    assert whole(runs["theirs"], "seconds") == 12.0
    lines = table(runs, ours="ours", before=["x"], after=[], cells=lambda name: ([name[0]], []))
    assert lines[2] == "| theirs | t | 12.0 | 4 | 3.00 (2.00 to 4.00) | – | 0.25 |"
    assert lines[3] == "| ours | o | 4.0 | 1 |  |  |  |"


def test_the_peak_of_a_program_is_without_the_memory_of_the_one_that_started_it() -> None:
    held = b"x" * (300 * 2**20)
    program = "from benchmarks.speed_ratios import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) < len(held)
