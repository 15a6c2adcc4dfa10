"""The base of everything that crosses the wall."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable record that refuses unknown keys, NaN and infinity.

    `allow_inf_nan=False` because pydantic writes NaN to JSON as `null`: a diverged loss must not come back as a
    missing number. `frozen` is shallow, so fields hold tuples, never lists. Not `strict`: PyYAML reads `1e-5` as text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
