"""The ladder in words, for people."""

from collections.abc import Sequence

from containers.contracts.ladder import Rung
from containers.human_text import markdown_table


def in_words(rungs: Sequence[Rung]) -> str:
    """`as planned but for: per-device batch 4 → 2, accumulation 7 → 14; gradient checkpointing on`."""
    return f"as planned but for: {'; '.join(rung.change for rung in rungs)}" if rungs else "as planned"


def ladder_markdown(rungs: Sequence[Rung], *, not_tried: Sequence[str]) -> str:
    """A table of what each failure changed, and why no more was."""
    rows = [(str(number), rung.after.value, rung.change) for number, rung in enumerate(rungs, start=1)]
    table = markdown_table(("", "After", "Changed"), rows)
    left = f"\n\nNot tried: {'; '.join(not_tried)}." if not_tried else ""
    return f"{table}\n\nGlobal batch and steps stay; it goes on from the last checkpoint.{left}"
