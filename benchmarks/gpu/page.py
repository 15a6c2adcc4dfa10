"""The page of `benchmarks.on_gpu`, and the short table that it prints."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.provenance import when_and_where
from containers.contracts.configs.selftest import Selftest
from tasks.checks.selftest.table import summary, table_of

Line = Mapping[str, Any]
_TITLE = "# On a GPU"
_STAGE_COLUMNS = ("stage", "way", "ok", "seconds", "median_step_s", "peak_gib", "planned_gib", "planned_s")
_EXACT_COLUMNS = ("what", "values_largest", "values_mean", "gradient_relative", "gradient_cosine")
_RESUME_COLUMNS = ("what", "equal", "share_equal", "largest", "relative", "losses apart")
_SPEED_COLUMNS = ("what", "way", "seconds", "memory_gib", "ours is faster")
_SELFTEST_COLUMNS = ("#", "probe", "verdict", "measured")
_VERSIONS = ("card", "memory_gib", "cores", "python", "torch", "triton", "transformers", "trl", "peft", "numpy")


def page_text(lines: Sequence[Line], codes: Mapping[str, str], *, command: str, measured: str) -> str:
    """Return the page: command, date, commit, machine, and a table for each question."""
    found = next((line for line in lines if "card" in line), {})
    versions = "; ".join(f"{name} {found[name]}" for name in _VERSIONS if name in found)
    parts = [
        _TITLE,
        f"`{command}`",
        f"{when_and_where(measured)}.",
        f"{versions}." if versions else "The machine was not read.",
        "How the parts ended: " + "; ".join(f"{name}: {how}" for name, how in codes.items()) + ".",
        "## Stages by their own programs",
        "Memory is torch's peak, the plan's is without CUDA itself. A step is the median without the first. The "
        "policies after the first were trained at the same time, so their seconds say nothing.",
        table(_of(lines, "stage"), _STAGE_COLUMNS),
        *_notes(lines),
        "## The same training once more, and after SIGKILL",
        "Weights of the adapters, and absolute differences of the loss at each step.",
        table(_of(lines, "share_equal"), _RESUME_COLUMNS),
        "## Packed beside padded rows, and beside the CPU",
        "Scores (reward model) or log-probabilities (policy), and gradients of all weights.",
        table(_of(lines, "gradient_cosine"), _EXACT_COLUMNS),
        "\n".join(f"- {line['note']}" for line in lines if "note" in line),
        "## Beside TRL and transformers",
        "Each way in turn in one process, on two draws, after a draw that does not count.",
        table(_of(lines, "memory_gib", "way"), _SPEED_COLUMNS),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def short_table(lines: Sequence[Line], codes: Mapping[str, str]) -> str:
    """Return all figures in few characters, for a terminal."""
    rows = [*(f"{name}: {how}" for name, how in codes.items())]
    for line in lines:
        shown = {key: value for key, value in line.items() if key not in _LONG}
        rows.append(" ".join(f"{key}={_cell(value)}" for key, value in shown.items()))
    return "\n".join(rows)


_LONG = ("nvidia-smi", "notes", "log", "metrics", "step_s")


def _of(lines: Iterable[Line], *keys: str) -> list[Line]:
    return [line for line in lines if all(key in line for key in keys)]


def _notes(lines: Sequence[Line]) -> list[str]:
    """Return what stages noted, each text once, and why some failed."""
    noted: dict[str, list[str]] = {}
    for line in _of(lines, "stage"):
        name = f"{line['stage']} {line['way']}".strip()
        for text in (*line.get("notes", ()), *([f"FAILED: {line['failure']}"] if "failure" in line else ())):
            noted.setdefault(text, []).append(name)
    return ["\n".join(f"- {', '.join(dict.fromkeys(names))}: {text}" for text, names in noted.items())]


def table(lines: Sequence[Line], columns: Sequence[str]) -> str:
    """Return a table with a row for each line; a missing figure is a dash. Empty without lines."""
    if not lines:
        return ""
    rows = [[_cell(line.get(column, "–")) for column in columns] for line in lines]
    heads = [column.replace("_", " ") for column in columns]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(columns), *rows))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value) or "–"


def selftest_text(record: Selftest) -> str:
    """Return the self-test's machine, its table, and what failed."""
    versions = "; ".join(f"{name} {version}" for name, version in record.packages)
    image = f", image {record.image_digest}" if record.image_digest else ""
    rows = [dict(zip(_SELFTEST_COLUMNS, map(str, cells), strict=True)) for cells in table_of(record).rows]
    parts = [
        f"{record.num_gpus} × {record.card}, driver {record.driver or 'unknown'}, profile `{record.profile}`; "
        f"{record.runtime}{image}; {record.model}; {record.made_at}.",
        f"{versions}." if versions else "",
        summary(record),
        table(rows, _SELFTEST_COLUMNS),
        "\n".join(f"- {row.name}: {row.why.rstrip('.')}. {row.advice}" for row in record.failed),
    ]
    return "\n\n".join(part for part in parts if part)
