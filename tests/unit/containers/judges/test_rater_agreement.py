"""People who judged the same pairs: agreement beyond chance."""

import pytest

from containers.judges.rater_agreement import krippendorff_alpha


def test_it_is_the_published_example() -> None:
    """Krippendorff 2011, section C: four observers, twelve units, some missing: nominal alpha 0.743."""
    units = [
        (1, 1, 1), (2, 2, 3, 2), (3, 3, 3, 3), (3, 3, 3, 3), (2, 2, 2, 2), (1, 2, 3, 4), (4, 4, 4, 4), (1, 1, 2, 1),
        (2, 2, 2, 2), (5, 5, 5), (1, 1), (3,),
    ]  # fmt: skip
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=0.001)


@pytest.mark.parametrize(
    ("items", "alpha"),
    [
        ([(1, 1), (0, 0), (1, 1), (0, 0)], 1.0),
        ([(1, 1), (1, 1)], None),
        ([(1,), (0,)], None),
        ([], None),
    ],
)
def test_full_agreement_is_1_and_without_a_difference_it_says_nothing(
    items: list[tuple[int, ...]], alpha: float | None
) -> None:
    assert krippendorff_alpha(items) == alpha


def test_opposite_choices_are_below_chance() -> None:
    found = krippendorff_alpha([(1, 0), (0, 1), (1, 0), (0, 1)])
    assert found is not None and found < 0
