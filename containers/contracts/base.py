"""Base model and number types of everything that crosses the container boundary."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    """Immutable record that refuses unknown keys, NaN and infinity.

    `allow_inf_nan=False` because pydantic writes NaN to JSON as `null`: a diverged loss must not come back as a
    missing number. `frozen` is shallow, so fields hold tuples, never lists. Not `strict`: PyYAML reads `1e-5` as text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def read_if_valid(cls, path: Path) -> Self | None:
        """The record in that JSON file; None where there is none, or it cannot be read."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            return None


_LARGEST = 1e12

Name = Annotated[str, Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9_-]*$")]
Confidence = Annotated[float, Field(gt=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=_LARGEST)]
Weight = Annotated[float, Field(ge=0, le=_LARGEST)]
Difference = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
Seconds = Annotated[float, Field(gt=0, le=365 * 24 * 3600)]
Hours = Annotated[float, Field(gt=0, le=10 * 365 * 24)]
GpuHours = Annotated[float, Field(gt=0, le=1e8)]

Seed = Annotated[int, Field(ge=0, lt=2**32)]  # the seeds that numpy accepts
Port = Annotated[int, Field(ge=0, le=65535)]
Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]
Shown = Annotated[int, Field(ge=0, le=10_000)]
LimitBytes = Annotated[int, Field(ge=-1, le=1024**5)]  # -1 is unlimited

# Each key gives its own minimum: of two minima, pydantic would keep the one here.
Gibibytes = Annotated[float, Field(le=1024**2)]
WholeSeconds = Annotated[int, Field(le=365 * 24 * 3600)]
Tokens = Annotated[int, Field(le=10_000_000)]
TokensPerForward = Annotated[int, Field(le=1_000_000_000)]
Rows = Annotated[int, Field(le=1_000_000_000_000)]
BatchSize = Annotated[int, Field(le=10_000_000)]
Width = Annotated[int, Field(le=10_000_000)]
Resamples = Annotated[int, Field(le=1_000_000_000)]

BatchTokens = Annotated[TokensPerForward | None, Field(ge=1)]
