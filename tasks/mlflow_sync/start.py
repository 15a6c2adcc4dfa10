"""The start of an MLflow server by this process; the first stage runs at the same time.

Messages for MLflow wait on disk until it is up, as for a server that is away. The code that starts servers installs the
start; in every other process MLflow counts as up from the beginning.
"""


class MlflowStart:
    """The start of an MLflow server. This one is over: MLflow is up, or away like any other server."""

    @property
    def is_up(self) -> bool:
        """Whether it has answered; does not wait."""
        return True

    @property
    def problem(self) -> str:
        """Why it does not start; empty while it may still come up."""
        return ""

    def wait(self, *, limit_s: float | None = None) -> None:
        """Wait until it is up, fails to start, or the limit has passed."""


_installed: list[MlflowStart] = [MlflowStart()]


def mlflow_start() -> MlflowStart:
    """Return the start that was installed last."""
    return _installed[-1]


def install_mlflow_start(start: MlflowStart) -> None:
    """Use this start from now on, in this process."""
    _installed.append(start)
