"""Tables and samples of blocks as rows for MLflow: figures unrounded, texts whole."""

from typing import NamedTuple

from containers.document.model import Block, Samples, Table, raw_of, walk


class NamedTable(NamedTuple):
    """Rows under column names; `name` is the file's name without its ending."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


def named_tables(*blocks: Block) -> tuple[NamedTable, ...]:
    """Return the tables that have a name, and the samples; those without rows are left out."""
    found = (_table(block) for block in walk(blocks) if isinstance(block, Table | Samples) and block.name)
    return tuple(table for table in found if table.rows)


def _table(block: Table | Samples) -> NamedTable:
    if isinstance(block, Samples):
        return _samples(block)
    columns = tuple(column.title.lower() for column in block.columns)
    return NamedTable(block.name, columns, tuple(tuple(map(raw_of, row)) for row in block.rows))


def _samples(block: Samples) -> NamedTable:
    titles = [answer.title for answer in block.items[0].answers] if block.items else []
    columns = ("prompt", *titles, *(f"score of {title}" for title in titles), "margin", "outcome", "detail")
    rows = tuple(
        (
            "\n\n".join(f"{message.role}: {message.content}" for message in item.prompt),
            *(answer.text for answer in item.answers),
            *(answer.score for answer in item.answers),
            item.margin,
            item.outcome.text,
            item.detail,
        )
        for item in block.items
    )
    return NamedTable(block.name, columns, rows)
