"""Displays of a running pipeline. The CLI installs a terminal, a flow that Prefect starts installs a log."""

from containers.contracts.names import StageName
from containers.contracts.records import StageRecord


class Display:
    """Receives the events of a run; never raises. This one shows nothing; others override its methods."""

    def stage_started(self, stage: StageName, text: str) -> None:
        """A stage begins."""

    def stage_progress(self, stage: StageName, done: int, total: int, text: str) -> None:
        """A stage has done `done` of `total`."""

    def stage_ended(self, record: StageRecord) -> None:
        """A stage ran, was reused, failed or was skipped."""

    def say(self, text: str, *, is_logged: bool = False) -> None:
        """Lines for the user; `is_logged`: Prefect's log has them already."""


_current: list[Display] = [Display()]


def current_display() -> Display:
    """The display that was installed last."""
    return _current[-1]


def install_display(display: Display) -> None:
    """Show what happens on `display` from now on, in this process."""
    _current.append(display)
