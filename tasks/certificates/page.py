"""Reward models side by side as a page: scores with intervals, each model against the first, how to read it."""

from containers.contracts.outcome import Metric
from containers.document.model import Column, Note, Page, Plots, Section, Table, Text, Value
from containers.formatting import interval, number, one_line, percent, quantity
from tasks.certificates.comparison import CertificateTable, SuiteCell

_ALPHA = 0.05
_NAME_LIMIT = 60


def comparison_page(table: CertificateTable) -> Page:
    """Return the page with the plot."""
    from containers.report.figures import side_by_side_plot

    names = [one_line(name, _NAME_LIMIT) for name in table.models]
    scores = [(row.name, [cell.score for cell in row.cells]) for row in table.suites]
    plot = side_by_side_plot("Score of each model on each suite", names, scores, salt="side by side")
    return Page(
        f"Reward models side by side: {', '.join(names)}",
        sections=(
            Section("Scores", (Note("Each suite by its own rule, with interval.", "lead"), Plots((plot,)))),
            Section("Figures", (Note(comparison_note(table), "lead"), comparison_table(table))),
        ),
        footer="Written by rlhf compare from the certificates and the scores of every pair beside them.",
    )


def comparison_table(table: CertificateTable) -> Table:
    """A row per suite, then a row per figure of the whole model."""
    rows: list[tuple[Value, ...]] = [(row.name, *map(_cell, row.cells)) for row in table.suites]
    rows += [(label, *map(_figure, metrics)) for label, metrics in table.whole]
    return Table((Column(""), *(Column(name, is_number=True) for name in table.models)), tuple(rows))


def comparison_note(table: CertificateTable) -> str:
    """Return a text on how to read the table."""
    level = percent(table.confidence)
    note = (
        f"A suite's own score with its {level} interval. Below it: pairs in the right order, against "
        f"{table.models[0]}, on the items that both were judged by (paired bootstrap over prompts, each with all its "
        "items; p of McNemar's exact test over the prompts that one of the two does better on)."
    )
    by_chance = table.num_tests * _ALPHA
    if table.num_tests > 1:
        note += f" Of {table.num_tests} such comparisons of equal models, {by_chance:.1f} give p < {_ALPHA} by chance."
    return note


def _cell(cell: SuiteCell) -> Text:
    score = _figure(cell.score) if cell.score is not None else ""
    below = "; ".join(part for part in (_against(cell), cell.remark) if part)
    return Text(score, sub=below) if score else Text(below or "no figure")


def _figure(metric: Metric | None) -> str:
    if metric is None:
        return "not measured"
    spread = interval(metric)
    return quantity(metric.value, metric.unit) + (f" ({spread})" if spread else "")


def _against(cell: SuiteCell) -> str:
    found = cell.against_first
    if found is None:
        return ""
    difference = found.difference
    points = f"{difference.value * 100:+.1f}"
    if difference.ci_low is not None and difference.ci_high is not None:
        points += f" ({difference.ci_low * 100:+.1f} to {difference.ci_high * 100:+.1f})"
    verdict = "no difference beyond chance"
    if found.p_value < _ALPHA:
        verdict = "better" if found.num_better > found.num_worse else "worse"
    asked = f" on {found.num_prompts:,} prompts" if found.num_prompts < (difference.count or 0) else ""
    beside = f", {cell.other_items:,} items of only one left out" if cell.other_items else ""
    p_value = "< 0.0001" if found.p_value < 0.0001 else number(found.p_value)
    return f"{points} points, p {p_value}: {verdict} (n = {difference.count:,}{asked}{beside})"
