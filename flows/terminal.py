"""The terminal's view of a run: one line per stage, a live bar while it works; plain lines without a terminal."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text as RichText

from containers.contracts.names import StageName
from containers.contracts.records import StageRecord
from containers.document.model import Table, Text, text_of
from tasks.display import Display

_PLAIN_PROGRESS_EVERY_S = 15.0
_MARKS = {
    "ran": "[green]✔[/]",
    "reused": "[cyan]↺[/]",
    "failed": "[red]✘[/]",
    "skipped": "[yellow]–[/]",
    "waits": "[yellow]⏸[/]",
}


def printable(text: str) -> str:
    """Replace control characters except line ends: data must not control the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def print_table(console: Console, table: Table, *, lines: bool = False) -> None:
    """Print a table of a document; a second line of a cell stands below its first.

    Args:
        lines: draw lines between rows.
    """
    shown = RichTable(show_lines=True) if lines else RichTable(box=None, pad_edge=False)
    for column in table.columns:
        shown.add_column(column.title, justify="right" if column.is_number and not lines else "left")
    for row in table.rows:
        texts = [(text_of(value), value.sub if isinstance(value, Text) else "") for value in row]
        shown.add_row(*(RichText(printable("\n".join(part for part in pair if part))) for pair in texts))
    console.print(shown)


class TerminalDisplay(Display):
    """A display on a rich console.

    Attributes:
        running: the stage whose program runs now.
    """

    def __init__(self, console: Console | None = None) -> None:
        # Without a terminal, lines go to a file or to CI: do not wrap them.
        self.console = console or Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._last_plain_s = 0.0
        self.running: StageName | None = None

    def stage_started(self, stage: StageName, text: str) -> None:
        """Show a bar on a terminal, a line elsewhere."""
        self._last_plain_s = time.monotonic()
        self.running = stage
        if not self.console.is_terminal:
            self.console.print(f"… {stage} ({text})")
            return
        self._progress = Progress(
            TextColumn("  {task.description:<22}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
        )
        self._progress.start()
        self._bar = self._progress.add_task(stage, total=None, note=text)

    def stage_progress(self, stage: StageName, done: int, total: int, text: str) -> None:
        """Move the bar; without a terminal, print a line every 15 s."""
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=done, total=total, note=text)
        elif time.monotonic() - self._last_plain_s > _PLAIN_PROGRESS_EVERY_S:
            self._last_plain_s = time.monotonic()
            self.console.print(f"  {stage}: {done:,} of {total:,} {text}")

    def stage_ended(self, record: StageRecord) -> None:
        """Print one line: how the stage ended, and its first figures."""
        self.close()
        self.running = None
        figures = ", ".join(f"{metric.name} {metric.value:.4g}" for metric in record.metrics[:3])
        duration = f"{record.duration_s:.0f} s" if record.status == "ran" else record.status
        first_line = record.message.partition("\n")[0]  # the whole message follows when the run ends
        text = first_line if record.status in ("failed", "skipped", "waits") else figures
        self.console.print(f"{_MARKS[record.status]} {record.stage:<22} {duration:>8}  ", end="")
        self.console.print(printable(text), markup=False)

    def close(self) -> None:
        """Remove the bar, also when a stage was interrupted."""
        if self._progress is not None:
            self._progress.stop()
            self._progress, self._bar = None, None

    def say(self, text: str, *, is_logged: bool = False) -> None:
        """Print the lines, also those in Prefect's log: the terminal does not show that log."""
        self.console.print(printable(text), markup=False)
