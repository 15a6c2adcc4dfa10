"""The uncertainty of a figure that is no mean: it is computed again without each cluster. Pure numpy."""

from collections.abc import Sequence

import numpy as np

from containers.evals.intervals import Floats, LinearFigure

# With fewer clusters an interval would be a guess.
_FEWEST_CLUSTERS = 3


def jackknife(value: float, left_out: Sequence[float] | Floats, *, num_strata: int = 1) -> LinearFigure | None:
    """The figure with what each cluster moves it by, for `mean_interval` (Student's t) or `share_interval`.

    Args:
        left_out: [C] the figure without each cluster, or each group of equally many clusters; NaN: undefined.
        num_strata: means, slopes and the like that the figure is made of; each costs a degree of freedom.

    Returns:
        None for fewer than three clusters, or where the figure is undefined without one of them: it rests on that
        cluster alone, and nothing tells how much another one in its place would move it.

    Source: Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, chapter 3; groups: Shao and Tu 1995,
    The Jackknife and Bootstrap, 2.3. The variance is (C − 1) / C · Σ (value without one − mean of these)².
    Example: the mean 2 of 1, 2, 3 is 2.5, 2, 1.5 without each; the variance is 2/3 · 0.5 = 1/3, that of the mean.
    """
    values = np.asarray(left_out, dtype=np.float64)
    size = values.size
    if size < _FEWEST_CLUSTERS or not np.isfinite(values).all():
        return None
    residuals: Floats = np.sqrt((size - 1) / size) * (values.mean() - values)
    return LinearFigure(value, residuals, np.full(size, 1 / size), num_strata=num_strata)
