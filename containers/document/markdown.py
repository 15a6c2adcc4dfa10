"""Blocks as Markdown for the pages of Prefect: no HTML, no link by path; foreign text is escaped."""

import base64
from collections.abc import Sequence
from typing import TypeVar

from containers.contracts.records import Message
from containers.document.links import safe_url
from containers.document.model import (
    Beside,
    Block,
    Bullets,
    Card,
    Code,
    Definitions,
    Facts,
    Fold,
    Note,
    Page,
    Plot,
    Plots,
    Sample,
    Samples,
    Section,
    Table,
    Text,
    Tone,
    Value,
    heads,
    text_of,
)
from containers.formatting import MISSING, markdown_text, number

T = TypeVar("T")

MARKS: dict[Tone, str] = {"good": "✅", "warn": "⚠️", "bad": "❌", "plain": "ℹ️"}
_CELL_MARKS: dict[Tone | None, str] = {"good": "✔ ", "warn": "⚠ ", "bad": "✘ "}
_CELL_LIMIT, _NOTE_LIMIT = 700, 1500
_MAX_SAMPLES = 4


def markdown(*blocks: Block, level: int = 2) -> str:
    """Return the blocks one below the other; headings begin with `level` signs."""
    return "\n\n".join(text for block in blocks if (text := _block(block, level))) + "\n"


def page_markdown(page: Page) -> str:
    """Return a page: its title, banner, main figures and sections."""
    parts = [f"# {markdown_text(page.title)}"]
    if page.banner is not None:
        parts.append(f"{MARKS[page.banner.tone]} **{markdown_text(page.banner.headline)}**")
        parts += [markdown_text(detail, limit=_NOTE_LIMIT) for detail in page.banner.details]
    return "\n\n".join((*parts, _cards(page.cards), markdown(*page.sections)))


def _block(block: Block, level: int) -> str:
    match block:
        case Section() | Fold():
            outcome = f": {_cell(block.outcome)}" if isinstance(block, Section) and block.outcome else ""
            body = markdown(*block.blocks, level=level + 1).rstrip()
            return f"{'#' * level} {markdown_text(block.title)}{outcome}\n\n{body}" if body else ""
        case Facts():
            return _grid(("", "Value"), [(markdown_text(name), _cell(value)) for name, value in block.shown])
        case Table():
            return _table(block)
        case Note():
            return _note(block)
        case Bullets():
            return "\n".join(f"- {markdown_text(item, limit=_NOTE_LIMIT)}" for item in block.items)
        case Code():
            # A fence inside the text must not end ours.
            text = block.text.replace("```", "\u02cb\u02cb\u02cb")[: block.limit] or "none"
            return f"```text\n{text}\n```"
        case Plots():
            return "\n\n".join(map(_image, block.items)) or markdown_text(block.empty)
        case Samples():
            return "\n\n".join(map(_sample, _spread(block.items)))
        case Beside():
            return "\n\n".join(text for part in block.parts if (text := markdown(*part, level=level).rstrip()))
        case Definitions():
            return ""
    return ""  # the drawing of the DAG: Prefect has its own


def _cell(value: Value) -> str:
    """Return a value as escaped text of one line."""
    text = markdown_text(text_of(value), limit=_CELL_LIMIT)
    if not isinstance(value, Text):
        return text
    if value.is_code and text:
        text = f"`{value.text.replace('`', '')}`"
    if safe_url(value.link):
        text = f"[{text}]({value.link})"
    sub = f" ({markdown_text(value.sub, limit=_CELL_LIMIT)})" if value.sub else ""
    return f"{_CELL_MARKS.get(value.tone, '')}{text}{sub}"


def _table(table: Table) -> str:
    rows = [tuple(_cell(value) for value in row) for row in table.rows]
    right = [index for index, column in enumerate(table.columns) if column.is_number]
    return _grid([column.title for column in table.columns], rows, right) or markdown_text(table.empty, limit=300)


def _grid(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return a Markdown table of escaped cells, with figures at the right; empty without rows."""
    rule = "|" + "|".join("--:" if index in right else "---" for index in range(len(titles))) + "|"
    lines = [f"| {' | '.join(cells)} |" for cells in (list(map(markdown_text, titles)), *rows)]
    return "\n".join((lines[0], rule, *lines[1:])) if rows else ""


def _note(note: Note) -> str:
    text = markdown_text(note.text, limit=_NOTE_LIMIT)
    if safe_url(note.link):
        return f"[{text}]({note.link})"
    return f"⚠ {text}" if note.look == "caveat" else text


def _image(plot: Plot) -> str:
    """Return the plot as a picture inside the text, on a light ground, since the page may be dark."""
    head, _, rest = plot.svg.partition(">")
    svg = f'{head} font-family="sans-serif"><rect width="100%" height="100%" rx="6" fill="#fcfcfb"/>{rest}'
    data = base64.b64encode(svg.encode()).decode()
    title = markdown_text(plot.title)
    note = f"\n\n{markdown_text(plot.note, limit=_NOTE_LIMIT)}" if plot.note else ""
    return f"**{title}**\n\n![{title}](data:image/svg+xml;base64,{data}){note}"


def _sample(sample: Sample) -> str:
    """Return a prompt and its answers, each with its name and score, as text that wraps."""
    lines = [f"- **{item.title}, {number(item.score)}:** {markdown_text(item.text)}" for item in sample.answers]
    return "\n".join((f"{_last_turn(sample.prompt)} ({_cell(sample.outcome)})", "", *lines))


def _last_turn(prompt: Sequence[Message]) -> str:
    return markdown_text(prompt[-1].content) if prompt else MISSING


def _spread(samples: Sequence[T]) -> list[T]:
    """Return a few samples, evenly from the first to the last: they are sorted."""
    last, gaps = len(samples) - 1, min(_MAX_SAMPLES, len(samples)) - 1
    return [samples[round(index * last / gaps)] for index in range(gaps + 1)] if gaps > 0 else list(samples)


def _cards(cards: Sequence[Card]) -> str:
    rows = tuple(
        (card.label, card.value or None, card.interval, card.detail, card.origin if card.value else "")
        for card in cards
    )
    columns = (*heads("Figure"), *heads("Value", numbers=1), *heads("Interval", "Based on", "Origin"))
    return _table(Table(columns, rows))
