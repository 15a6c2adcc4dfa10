"""Numbers with bounds, as configurations use them.

Every number ends on both sides, far beyond what a run can need: Prefect's server takes an integer of more than 64 bits,
and from then on fails at every list that this run stands in.
"""

from typing import Annotated

from pydantic import Field

_LARGEST = 1e12

Confidence = Annotated[float, Field(gt=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=_LARGEST)]
Weight = Annotated[float, Field(ge=0, le=_LARGEST)]
Difference = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
Seconds = Annotated[float, Field(gt=0, le=365 * 24 * 3600)]
Hours = Annotated[float, Field(gt=0, le=10 * 365 * 24)]

Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what numpy takes
Port = Annotated[int, Field(ge=0, le=65535)]
Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]
Shown = Annotated[int, Field(ge=0, le=10_000)]
LimitBytes = Annotated[int, Field(ge=-1, le=1024**5)]  # -1 is unlimited

# The key itself says what is the least: of two minima, pydantic would keep the one here.
Gibibytes = Annotated[float, Field(le=1024**2)]
WholeSeconds = Annotated[int, Field(le=365 * 24 * 3600)]
Tokens = Annotated[int, Field(le=10_000_000)]
TokensPerForward = Annotated[int, Field(le=1_000_000_000)]
Rows = Annotated[int, Field(le=1_000_000_000_000)]
BatchSize = Annotated[int, Field(le=10_000_000)]
Width = Annotated[int, Field(le=10_000_000)]
Resamples = Annotated[int, Field(le=1_000_000_000)]
