"""Progress of a stage, recorded at most once a second."""

import time
from collections.abc import Callable

from containers.harness.context import StageContext

_INTERVAL_S = 1.0


def progress_of(context: StageContext, total: int, *, unit: str, text: str) -> Callable[[int], None]:
    """Return a callback that takes how many are done, and records it at most once a second and at the end."""
    told_at_s = -_INTERVAL_S

    def tell(done: int) -> None:
        nonlocal told_at_s
        if time.monotonic() - told_at_s >= _INTERVAL_S or done == total:
            told_at_s = time.monotonic()
            context.recorder.progress(done, total, unit=unit, text=text)

    return tell
