"""A policy is trusted by what was shown, and never by what was not disproved."""

import numpy as np
import pytest
from scipy import stats

from containers.evidence.trust import Tally, Trust, chance_to_show, least_shown, look


@pytest.mark.parametrize(
    ("tally", "shown"),
    [
        (Tally(wins=41, losses=23), "better"),
        (Tally(wins=40, losses=24), "neither"),
        (Tally(wins=23, losses=41), "worse"),
        (Tally(wins=24, losses=40), "neither"),
        (Tally(wins=6), "better"),
        (Tally(wins=5, ties=59), "neither"),
        (Tally(ties=64), "neither"),
        (Tally(untold=64), "neither"),
    ],
)
def test_a_look_shows_a_gain_or_a_loss_beyond_chance_and_ties_tell_nothing(tally: Tally, shown: str) -> None:
    assert tally.shown == shown


def test_the_example_in_the_text_is_the_binomial_tail() -> None:
    assert float(stats.binom.sf(40, 64, 0.5)) == pytest.approx(0.0164, abs=1e-4)
    assert float(stats.binom.sf(39, 64, 0.5)) == pytest.approx(0.0300, abs=1e-4)


@pytest.mark.parametrize(("first", "calls"), [((50, 14), 1), ((14, 50), 1), ((34, 30), 2)])
def test_twice_as_many_pairs_are_shown_only_where_the_first_tell_nothing(first: tuple[int, int], calls: int) -> None:
    asked: list[tuple[int, int]] = []

    def judged(start: int, end: int) -> Tally:
        asked.append((start, end))
        wins, losses = first
        return Tally(wins=wins, losses=losses) if not start else Tally(wins=60, losses=4)

    found = look(judged, num_pairs=64)
    assert asked == [(0, 64), (64, 128)][:calls]
    assert found.wins + found.losses == 64 * calls
    assert found.shown == {(50, 14): "better", (14, 50): "worse", (34, 30): "better"}[first]


def test_two_looks_in_a_row_without_a_gain_are_no_gain_and_one_with_it_starts_anew() -> None:
    trust = Trust(patience=2)
    assert [trust.take(step, "neither") for step in (10,)] == ["goes on"]
    assert (trust.take(20, "better"), trust.step) == ("trusted", 20)
    assert [trust.take(30, "neither"), trust.take(40, "neither")] == ["goes on", "no gain"]
    assert trust.step == 20
    # After a roll-back, the policy has its whole patience again.
    assert trust.take(50, "neither") == "goes on"


def test_a_look_that_a_meter_asked_for_tries_no_patience() -> None:
    trust = Trust(patience=2)
    found = [
        trust.take(step, "neither", was_due=due) for step, due in ((5, False), (10, True), (12, False), (20, True))
    ]
    assert found == ["goes on", "goes on", "goes on", "no gain"]
    assert Trust(patience=2).take(5, "worse", was_due=False) == "no gain"


def test_a_loss_beyond_chance_needs_no_second_look() -> None:
    assert Trust(patience=2).take(10, "worse") == "no gain"


def test_an_equal_policy_is_trusted_or_distrusted_in_at_most_a_tenth_of_the_looks() -> None:
    """Two tests of 2.5 % on either side, on 64 and then on 128 pairs: exact, from the binomial."""
    wins = range(65)
    first = {number: float(stats.binom.pmf(number, 64, 0.5)) for number in wins}
    better = sum(chance for number, chance in first.items() if Tally(wins=number, losses=64 - number).shown == "better")
    for number, chance in first.items():
        if Tally(wins=number, losses=64 - number).shown == "neither":
            better += chance * sum(
                float(stats.binom.pmf(more, 64, 0.5))
                for more in wins
                if Tally(wins=number + more, losses=128 - number - more).shown == "better"
            )
    assert 0.02 < better < 0.05


@pytest.mark.waits
def test_the_gain_that_a_look_shows_is_that_of_simulated_looks() -> None:
    generator = np.random.default_rng(2)
    shown = 0
    for _ in range(4000):
        shown += look(lambda start, end: _drawn(generator, end - start, 0.6), num_pairs=32).shown == "better"
    assert chance_to_show(0.6, num_pairs=32) == pytest.approx(shown / 4000, abs=0.02)


def _drawn(generator: np.random.Generator, number: int, win_rate: float) -> Tally:
    wins = int(generator.binomial(number, win_rate))
    return Tally(wins=wins, losses=number - wins)


@pytest.mark.waits
@pytest.mark.parametrize(("num_pairs", "least"), [(64, 0.624), (256, 0.5615), (1000, 0.531)])
def test_more_pairs_show_smaller_gains(num_pairs: int, least: float) -> None:
    found = least_shown(num_pairs=num_pairs)
    assert found == pytest.approx(least, abs=0.002)
    assert chance_to_show(found, num_pairs=num_pairs) >= 0.8 > chance_to_show(found - 0.003, num_pairs=num_pairs)
