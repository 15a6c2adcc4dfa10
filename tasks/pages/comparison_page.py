"""Reward models side by side, as lines for a terminal and as one self-contained page with a plot. Pure."""

from collections.abc import Sequence
from html import escape

from containers.contracts.outcome import Metric
from containers.formatting import interval, number, one_line, percent, quantity
from tasks.pages.comparison import AgainstFirst, CertificateTable, SuiteCell

_ALPHA = 0.05
_NAME_LIMIT = 60
_WIDTH, _NAMES, _RIGHT, _ROW, _GAP, _TOP = 920, 230, 90, 20, 16, 12
_COLOURS = ("#2a78d6", "#eb6834", "#1baf7a", "#8e6bd0", "#96610a", "#6d6b64")
_STYLE = """
:root { color-scheme: light dark; --page: #f6f5f1; --surface: #fff; --ink: #0b0b0b; --ink-2: #52514e; --line: #e4e2da;
  --grid: #e7e6df; }
@media (prefers-color-scheme: dark) { :root { --page: #111110; --surface: #1b1b1a; --ink: #f6f5f2; --ink-2: #c3c2b7;
  --line: #30302d; --grid: #2e2e2b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; } h2 { font-size: 21px; margin: 0 0 8px; }
p { max-width: 84ch; color: var(--ink-2); }
section { background: var(--surface); border: 1px solid var(--line); border-radius: 14px; padding: 24px 26px;
  margin: 20px 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 8px 14px 8px 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } td.figure, th.figure { text-align: right; } small { color: var(--ink-2); display: block; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .quiet { fill: var(--ink-2); }
svg path { stroke: var(--grid); }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 6px; }
"""


def comparison_lines(table: CertificateTable) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headers and rows for a terminal: a row per suite, then a row per figure of the whole model."""
    rows = [(row.name, *(_cell_text(cell) for cell in row.cells)) for row in table.suites]
    rows += [(label, *(_figure(metric) for metric in metrics)) for label, metrics in table.whole]
    return ("", *table.models), rows


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


def comparison_html(table: CertificateTable) -> str:
    """Return the page as HTML, without scripts or requests."""
    title = f"Reward models side by side: {', '.join(_short(name) for name in table.models)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>Reward models side by side</h1><p>{_legend(table.models)}</p>"
        f"<section><h2>Scores</h2><p>Each suite by its own rule, with interval.</p>{_plot(table)}</section>"
        f"<section><h2>Figures</h2><p>{escape(comparison_note(table))}</p>{_html_table(table)}</section>"
        "<p>Written by rlhf compare from the certificates and the scores of every pair beside them.</p>"
        "</main></body></html>\n"
    )


def _cell_text(cell: SuiteCell) -> str:
    lines = [_figure(cell.score)] if cell.score is not None else []
    if cell.against_first is not None:
        lines.append(_against(cell.against_first))
    if cell.remark:
        lines.append(cell.remark)
    return "\n".join(lines) or "no figure"


def _figure(metric: Metric | None) -> str:
    if metric is None:
        return "not measured"
    spread = interval(metric)
    return quantity(metric.value, metric.unit) + (f" ({spread})" if spread else "")


def _against(against: AgainstFirst) -> str:
    found, difference = against.found, against.found.difference
    points = f"{difference.value * 100:+.1f}"
    if difference.ci_low is not None and difference.ci_high is not None:
        points += f" ({difference.ci_low * 100:+.1f} to {difference.ci_high * 100:+.1f})"
    verdict = "no difference beyond chance"
    if found.p_value < _ALPHA:
        verdict = "better" if found.num_better > found.num_worse else "worse"
    asked = f" on {found.num_prompts:,} prompts" if found.num_prompts < (difference.count or 0) else ""
    beside = f", {against.other_items:,} items of only one left out" if against.other_items else ""
    return f"{points} points, p {_p_value(found.p_value)}: {verdict} (n = {difference.count:,}{asked}{beside})"


def _p_value(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else number(value)


def _short(name: str) -> str:
    return one_line(name, _NAME_LIMIT)


def _legend(models: Sequence[str]) -> str:
    return " &nbsp; ".join(
        f'<span class="key" style="background:{_colour(index)}"></span>{escape(_short(name))}'
        for index, name in enumerate(models)
    )


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _html_table(table: CertificateTable) -> str:
    headers, rows = comparison_lines(table)
    head = "".join(
        f"<th{'' if index == 0 else ' class=figure'}>{escape(_short(text))}</th>" for index, text in enumerate(headers)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td>{escape(text)}</td>" if index == 0 else f'<td class="figure">{_html_cell(text)}</td>'
            for index, text in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _html_cell(text: str) -> str:
    first, *others = text.split("\n")
    return escape(first) + "".join(f"<small>{escape(line)}</small>" for line in others)


def _plot(table: CertificateTable) -> str:
    """Draw a dot with its interval for each suite and model, from 0 to 100 %."""
    space = _WIDTH - _NAMES - _RIGHT
    group = len(table.models) * _ROW + _GAP
    height = _TOP + len(table.suites) * group + 30
    parts = []
    for tenth in range(0, 11, 2):
        x = _NAMES + tenth / 10 * space
        parts.append(f'<path d="M{x:.1f} {_TOP}V{height - 30}"/>')
        parts.append(f'<text class="quiet" x="{x:.1f}" y="{height - 10}" text-anchor="middle">{tenth * 10} %</text>')
    for row_index, row in enumerate(table.suites):
        top = _TOP + row_index * group
        parts.append(
            f'<text x="{_NAMES - 14}" y="{top + group / 2:.1f}" text-anchor="end">{escape(_short(row.name))}</text>'
        )
        for index, cell in enumerate(row.cells):
            if cell.score is not None:
                parts.append(
                    _dot(cell.score, y=top + _GAP / 2 + index * _ROW + _ROW / 2, space=space, colour=_colour(index))
                )
    return (
        f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="Score of each model on each suite">{"".join(parts)}</svg></div>'
    )


def _dot(score: Metric, *, y: float, space: float, colour: str) -> str:
    def place(value: float) -> float:
        return _NAMES + min(1.0, max(0.0, value)) * space

    line = ""
    if score.ci_low is not None and score.ci_high is not None:
        line = (
            f'<line x1="{place(score.ci_low):.1f}" x2="{place(score.ci_high):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{colour}" stroke-width="3" stroke-opacity="0.45"/>'
        )
    x = place(score.value)
    return (
        f'{line}<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
        f'<text class="quiet" x="{_WIDTH - _RIGHT + 12}" y="{y + 4:.1f}">{escape(percent(score.value))}</text>'
    )
