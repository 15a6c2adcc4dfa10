"""Win rates of arms over each other, with intervals over prompts and corrected for the number of comparisons."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean

from containers.arms.records import START, ArmCell, ArmValue, JudgedArms
from containers.evals.paired import holm_adjusted, mcnemar_p_value
from containers.evals.statistics import mean_metric, share_metric

# Of one pair of policies: 1, 0.5 or 0 for each prompt and number; None where the judge could not tell.
Points = Sequence[float | None]


def paired_seeds(arm: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    """Return which trainings of two arms are compared: those with the same seed, else in order.

    The start model was trained with no seed here; it is compared with each training of the other arm.
    Example: seeds 0, 1, 2 and 0, 2 give (0, 0) and (2, 2); seeds 0 and 1 give (0, 1).
    """
    shared = [(seed, seed) for seed in arm if seed in other]
    return shared or list(zip(arm, other, strict=False))


def pairs_of_arms(seeds: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int, str, int]]:
    """Yield every two trainings that are compared: arm and seed, the other arm and its seed.

    Args:
        seeds: of each arm, in the order of the table; `START` has none of its own.
    """
    for one, other in combinations(seeds, 2):
        if one == START:
            yield from ((other, seed, one, seed) for seed in seeds[other])
        else:
            yield from ((one, own, other, its) for own, its in paired_seeds(seeds[one], seeds[other]))


def arm_cell(
    arm: str, other: str, points: Mapping[int, Points], prompt_ids: Sequence[str], *, confidence: float
) -> ArmCell | None:
    """Return the comparison of two arms; None if the judge could tell nothing.

    A prompt counts once: with the mean over seeds and completions. Prompts are drawn, and the seeds of a training are
    few, so the interval is over prompts, and `ArmCell.is_shown` asks for every seed.

    Args:
        points: by seed of `arm`; each in the order of `prompt_ids`.
    """
    means = _means_of_prompts(points, prompt_ids)
    if not means:
        return None
    told = [value for of_seed in points.values() for value in _known(of_seed)]
    p_value = mcnemar_p_value(sum(mean > 0.5 for mean in means), sum(mean < 0.5 for mean in means))
    return ArmCell(
        arm=arm,
        other=other,
        win_rate=share_metric(means, name=f"{arm}_over_{other}", confidence=confidence),
        num_wins=sum(value > 0.5 for value in told),
        num_ties=sum(value == 0.5 for value in told),
        num_losses=sum(value < 0.5 for value in told),
        by_seed=tuple((seed, fmean(known)) for seed, of in points.items() if (known := _known(of))),
        p_value=p_value,
        p_adjusted=p_value,
    )


def arm_value(
    arm: str,
    values: Mapping[int, Points],
    prompt_ids: Sequence[str],
    *,
    is_outcome: bool,
    confidence: float,
) -> ArmValue | None:
    """Return the mean value of an arm over prompts, each with its mean over seeds and completions; None: none is known.

    Args:
        values: by seed; each in the order of `prompt_ids`.
    """
    means = _means_of_prompts(values, prompt_ids)
    if not means:
        return None
    name = f"{arm}_value"
    metric = (
        share_metric(means, name=name, confidence=confidence)
        if is_outcome
        else mean_metric(means, name=name, unit="score", confidence=confidence)
    )
    by_seed = tuple((seed, fmean(known)) for seed, of in values.items() if (known := _known(of)))
    return ArmValue(arm=arm, value=metric, by_seed=() if arm == START else by_seed)


def corrected(judges: Sequence[JudgedArms]) -> tuple[JudgedArms, ...]:
    """Return the same with p values for the number of cells of all judges that can judge."""
    usable = [judge for judge in judges if not judge.problem]
    adjusted = iter(holm_adjusted([cell.p_value for judge in usable for cell in judge.cells]))
    return tuple(
        judge.model_copy(
            update={"cells": tuple(cell.model_copy(update={"p_adjusted": next(adjusted)}) for cell in judge.cells)}
        )
        if not judge.problem
        else judge
        for judge in judges
    )


def _means_of_prompts(by_seed: Mapping[int, Points], prompt_ids: Sequence[str]) -> list[float]:
    """The mean of each prompt over seeds and completions; a prompt about which nothing is known has none."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for of_seed in by_seed.values():
        for prompt, value in zip(prompt_ids, of_seed, strict=True):
            if value is not None:
                found[prompt].append(value)
    return [fmean(values) for values in found.values()]


def _known(values: Points) -> list[float]:
    return [value for value in values if value is not None]
