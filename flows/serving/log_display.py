"""Shows a run in Prefect's log: for runs that have no terminal of their own."""

import re

from containers.contracts.names import StageName
from containers.contracts.records import StageRecord
from containers.host.environment_block import without_secrets
from tasks.pipeline.attempt import run_logger

_LOGGED_BY_THE_STAGE = ("reused",)
_COLUMN_GAP = re.compile(r"(?<=\S) {2,}")


class LogDisplay:
    """A `tasks.display.Display` whose lines stand in the log of the flow run, each once."""

    def stage_started(self, stage: StageName, text: str) -> None:
        """One line."""
        run_logger().info("%s starts: %s", stage, text)

    def stage_progress(self, stage: StageName, done: int, total: int, text: str) -> None:
        """Nothing: progress is an artifact of the stage."""

    def stage_ended(self, record: StageRecord) -> None:
        """One line: what became of the stage, and its first figures."""
        if record.status in _LOGGED_BY_THE_STAGE:
            return
        figures = ", ".join(f"{metric.name} {metric.value:.4g}" for metric in record.metrics[:3])
        if record.status == "ran":
            done = f"{record.stage} done in {record.duration_s:.0f} s"
            run_logger().info("%s", f"{done}: {figures}" if figures else done)
        else:
            run_logger().warning("%s %s: %s", record.stage, record.status, without_secrets(record.message))

    def say(self, text: str, *, is_logged: bool = False) -> None:
        """The lines, unless they were logged; without the blanks that make columns in a terminal."""
        if not is_logged:
            run_logger().info("%s", _COLUMN_GAP.sub(" ", without_secrets(text)))
