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

    @property
    def problem(self) -> str:
        """Why it does not start; empty while it may still come up."""

    def wait(self, *, limit_s: float | None = None) -> None:
        """Return when it is up, or does not start, or after the limit."""


class AlreadyUp:
    """Nobody here starts a server: it is up, or away like any other."""

    is_up = True
    problem = ""

    def wait(self, *, limit_s: float | None = None) -> None:
        """Nothing to wait for."""


_installed: list[MlflowStart] = [AlreadyUp()]


def mlflow_start() -> MlflowStart:
    """The start that was installed last."""
    return _installed[-1]


def install_mlflow_start(start: MlflowStart) -> None:
    """Count on this start from now on, in this process."""
    _installed.append(start)
