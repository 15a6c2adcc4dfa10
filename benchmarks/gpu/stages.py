"""What benchmarks say of the stages that they run."""

import sys
from collections.abc import Mapping
from typing import Any


def say(figures: Mapping[str, Any]) -> None:
    """Write the stage, its way and how long it took on standard error."""
    text = f"{figures['stage']} {figures['way']}: {figures['seconds']} s {figures.get('failure', '')}"
    print(text.rstrip(), file=sys.stderr, flush=True)
