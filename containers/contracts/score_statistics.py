"""Mean and spread of a reward model's scores, which are saved with the model."""

from pydantic import Field

from containers.contracts.base import Frozen

SCORE_STATISTICS_FILE = "score_statistics.json"


class ScoreStatistics(Frozen):
    """`score_statistics.json`, in the model's folder beside its weights."""

    mean: float
    standard_deviation: float = Field(ge=0, description="Of all the scores, divided by their number")
    num_scores: int = Field(ge=1)
    scores_of: str = Field(description="Which conversations were scored")
