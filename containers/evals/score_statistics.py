"""Mean and standard deviation of a reward model's scores: written by its training, read where its scores are used."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from containers.contracts.certificate import SCORE_STATISTICS_FILE, ScoreStatistics
from containers.harness.errors import MissingPrerequisiteError

# Scores with a spread below this share of the mean's size, and of 1, are all the same.
_LEAST_SPREAD = 1e-6


def score_statistics(scores: Sequence[float], *, scores_of: str) -> ScoreStatistics:
    """The statistics of these scores; there is at least one."""
    return ScoreStatistics(
        mean=statistics.fmean(scores),
        standard_deviation=statistics.pstdev(scores),
        num_scores=len(scores),
        scores_of=scores_of,
    )


def write_score_statistics(folder: Path, found: ScoreStatistics) -> None:
    """Write them beside the weights in `folder`."""
    (folder / SCORE_STATISTICS_FILE).write_text(found.model_dump_json(indent=2), encoding="utf-8")


def normalisation_of(folder: Path, *, origin: str) -> ScoreStatistics:
    """Read the statistics of the reward model in `folder`, by which its scores can be normalised.

    Args:
        origin: the name of the model in messages.

    Raises:
        MissingPrerequisiteError: there are none, they cannot be read, or the scores do not differ.
    """
    path = folder / SCORE_STATISTICS_FILE
    advice = "Set `normalise: off` there, or train the reward model with this pipeline."
    try:
        found = ScoreStatistics.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds something else"
        raise MissingPrerequisiteError(
            f"train_policy.rewards, normalise: validation needs the mean and standard deviation of the reward model's "
            f"scores, and {path.name} of {origin or folder} cannot be read: {why}. {advice}"
        ) from error
    if found.standard_deviation < _LEAST_SPREAD * max(1.0, abs(found.mean)):
        raise MissingPrerequisiteError(
            f"train_policy.rewards, normalise: validation cannot divide by the standard deviation of the reward "
            f"model's scores: it is {found.standard_deviation:g} over {found.num_scores:,} scores "
            f"({origin or folder}). The model gives everything the same score."
        )
    return found


def normalised(scores: Sequence[float], by: ScoreStatistics) -> list[float]:
    """(score - mean) / standard deviation.

    Example: mean 1 and standard deviation 2 turn the scores [1, 5] into [0, 2].
    """
    return [(score - by.mean) / by.standard_deviation for score in scores]
