"""Two models judged on the same items, several of which may ask one prompt: the difference over prompts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.outcome import Metric
from tasks.paired_statistics import mcnemar_p_value

# Resamples drawn at once: 64 MB for a million values.
_RESAMPLED_VALUES = 8_000_000


@dataclass(frozen=True)
class ClusteredDifference:
    """What two models differ by.

    Attributes:
        difference: mean over items, with its percentile bootstrap interval over prompts.
        num_prompts: different prompts among the items.
        num_better: prompts on which the second model does better in sum.
        num_worse: prompts on which it does worse.
        p_value: exact McNemar test over these prompts.
    """

    difference: Metric
    num_prompts: int
    num_better: int
    num_worse: int
    p_value: float


def clustered_difference(
    differences: Sequence[float], prompts: Sequence[str], *, confidence: float, num_bootstrap: int, seed: int = 0
) -> ClusteredDifference:
    """The mean difference; prompts are drawn with all their items, as items of one prompt are alike.

    Args:
        differences: second minus first model on each item, from -1 to 1.
        prompts: of each item the identity of its prompt.

    Raises:
        ValueError: there is no item.

    Source: Davison and Hinkley 1997, Bootstrap Methods and their Application, 3.8 (resampling whole clusters).
    Example: [1, 1, 0] on the prompts a, a, b has the mean 2/3, and one prompt of two speaks for the second model.
    """
    import numpy as np

    if not differences:
        raise ValueError("An interval needs at least one item.")
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(prompt, len(numbers)) for prompt in prompts]
    sums = np.bincount(places, weights=np.asarray(differences, dtype=np.float64))
    sizes = np.bincount(places)
    generator = np.random.default_rng(seed)
    at_once = max(1, _RESAMPLED_VALUES // sums.size)
    means = []
    for start in range(0, num_bootstrap, at_once):
        drawn = generator.integers(0, sums.size, size=(min(at_once, num_bootstrap - start), sums.size))
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    num_better, num_worse = int((sums > 0).sum()), int((sums < 0).sum())
    return ClusteredDifference(
        difference=Metric(
            name="difference",
            value=float(sums.sum() / sizes.sum()),
            unit="fraction",
            ci_low=float(low),
            ci_high=float(high),
            count=len(places),
        ),
        num_prompts=len(numbers),
        num_better=num_better,
        num_worse=num_worse,
        p_value=mcnemar_p_value(num_better, num_worse),
    )
