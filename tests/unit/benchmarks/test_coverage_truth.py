"""Small cases of `benchmarks.truth.coverage`, whose tables are docs/proofs/statistics.md, one of each kind."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from benchmarks.truth.coverage import Cell, mean_cells, small_subset_cells, weighted_cells, win_rate_cells

pytestmark = pytest.mark.waits
_DRAWS = 400


@pytest.mark.parametrize(
    ("cells_of", "lowest", "usual"),
    [(weighted_cells, 0.88, 0.95), (small_subset_cells, 0.88, 0.95), (win_rate_cells, 0.92, 0.95)],
)
def test_intervals_of_scores_and_win_rates_hold_the_truth(
    cells_of: Callable[[np.random.Generator, int], Iterator[Cell]], lowest: float, usual: float
) -> None:
    """A cell has 100 draws here or 400, so the least of thirty may be 5 points below what it is."""
    covered = [cell.coverage for cell in cells_of(np.random.default_rng(7), _DRAWS)]
    assert min(covered) >= lowest
    assert np.mean(covered) >= usual


def test_means_hold_the_truth_but_for_few_prompts_of_skewed_values() -> None:
    cells = {cell.setting: cell.coverage for cell in mean_cells(np.random.default_rng(7), _DRAWS)}
    assert all(covered >= 0.92 for setting, covered in cells.items() if "skewed" not in setting)
    assert min(cells.values()) >= 0.86, "three prompts of an exponential"
