"""Configuration and spec of `score_file`, the program behind `rlhf score`; no pipeline has it."""

from typing import Literal

from pydantic import Field, TypeAdapter

from containers.contracts.base import BatchSize, Confidence, Frozen, Tokens, TokensPerForward
from containers.contracts.names import ToolName
from containers.contracts.spec import StageSpec


class ScoreFileConfig(Frozen):
    """Settings for scoring the rows of a file."""

    stage: Literal["score_file"] = "score_file"
    max_length: Tokens | None = Field(
        None,
        ge=8,
        description="Tokens of a conversation; longer ones are left out and counted. null: the model's positions",
    )
    batch_size: BatchSize = Field(64, ge=1, description="Conversations per forward, at most")
    batch_tokens: TokensPerForward | None = Field(
        None, ge=1, description="Tokens per forward with their padding, at most; null: by the device"
    )
    normalise: bool = Field(False, description="Also give (score - mean) / standard deviation, as saved with the model")
    confidence: Confidence = Field(0.95, description="Level of the accuracy's interval")


class ScoreFileSpec(StageSpec):
    """The spec of `score_file`; launch, runtimes and entry program treat it like a stage's spec."""

    stage: Literal[ToolName.SCORE_FILE] = ToolName.SCORE_FILE  # type: ignore[assignment]
    config: ScoreFileConfig  # type: ignore[assignment]


_ANY_SPEC: TypeAdapter[StageSpec] = TypeAdapter(StageSpec | ScoreFileSpec)


def read_spec(text: bytes) -> StageSpec:
    """Parse the spec of a stage or of `score_file`.

    Raises:
        ValidationError: it is neither.
    """
    return _ANY_SPEC.validate_json(text)
