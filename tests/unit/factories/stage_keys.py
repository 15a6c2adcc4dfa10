"""The key of a stage from the parts of its identity."""

from typing import Any

from containers.contracts.configs.stages import StageConfig
from containers.contracts.identity import identity_key, stage_identity


def stage_key(config: StageConfig, **parts: Any) -> str:
    """64 hexadecimal digits over the identity; see `stage_identity` for the parts."""
    return identity_key(stage_identity(config, **parts))
