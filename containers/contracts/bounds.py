"""Numbers with bounds, as configurations use them."""

from typing import Annotated

from pydantic import Field

Confidence = Annotated[float, Field(gt=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
