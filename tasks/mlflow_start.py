"""Whether the MLflow server that this process starts is up: the first stage runs beside that start.

What MLflow should be told meanwhile waits on disk, as for a server that is away. The one who starts servers installs
the start; everywhere else MLflow counts as up from the beginning.
"""

from typing import Protocol


class MlflowStart(Protocol):
    """A server on its way up."""

    @property
    def is_up(self) -> bool:
        """Whether it has answered; at once."""

    def wait(self, *, limit_s: float | None = None) -> None:
        """Return when it is up, or after the limit.

        Raises:
            Exception: it does not start, and why; said once, afterwards it counts as a server that is away.
        """


class AlreadyUp:
    """Nobody here starts a server: it is up, or away like any other."""

    is_up = True

    def wait(self, *, limit_s: float | None = None) -> None:
        """Nothing to wait for."""


_installed: list[MlflowStart] = [AlreadyUp()]


def mlflow_start() -> MlflowStart:
    """The start that was installed last."""
    return _installed[-1]


def install_mlflow_start(start: MlflowStart) -> None:
    """Count on this start from now on, in this process."""
    _installed.append(start)
