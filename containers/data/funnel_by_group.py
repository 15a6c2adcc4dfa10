"""The funnel by group, as a table and as a picture: rows in and out of every filter for each domain, language, …"""

import csv
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from containers.contracts.funnel import Funnel, FunnelStep
from containers.data.funnel import GROUP_KINDS
from containers.formatting import humanize, one_line

FUNNEL_PLOT_FILE = "funnel.png"

_COLOURS = ("#2a6f97", "#e09f3e", "#5a9367", "#9d4edd", "#d1495b", "#6c757d")
_OTHERS_COLOUR, _LINE = "#ced4da", "#5c6670"
_MAX_GROUPS = len(_COLOURS)
_DOTS_PER_INCH = 130


def groups_of(funnel: Funnel) -> dict[str, dict[str, list[FunnelStep]]]:
    """Return the groups of each kind, most rows first (strengths: weakest first), each with its filters in order.

    Example: `groups_of(funnel)["domain"]["code"][0]` is the first filter, applied to the rows of the domain code.
    """
    read = {kind: getattr(funnel, f"read_by_{kind}") for kind in GROUP_KINDS}
    read["strength"] = sorted(read["strength"])
    return {
        kind: {name: _steps(funnel, name, kind=kind, read=count) for name, count in counts}
        for kind, counts in read.items()
    }


def write_funnel_table(path: Path, funnel: Funnel) -> None:
    """Write one line per filter and group that still has rows there, as CSV."""
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("kind", "group", "filter", "rows_in", "dropped", "rows_out"))
        for kind, groups in groups_of(funnel).items():
            for name, steps in groups.items():
                writer.writerows(
                    (kind, name, step.reason, step.rows_in, step.dropped, step.rows_out)
                    for step in steps
                    if step.rows_in
                )


def _steps(funnel: Funnel, name: str, *, kind: str, read: int) -> list[FunnelStep]:
    steps: list[FunnelStep] = []
    left = read
    for step in funnel.steps:
        dropped = dict(getattr(step, f"dropped_by_{kind}")).get(name, 0)
        steps.append(FunnelStep(reason=step.reason, rows_in=left, rows_out=left - dropped))
        left -= dropped
    return steps


def write_funnel_plot(path: Path, funnel: Funnel) -> None:
    """Write one panel per kind of group that has two or more groups; all rows in one panel where none has."""
    kinds = {kind: groups for kind, groups in groups_of(funnel).items() if len(groups) > 1}
    kinds = kinds or {"source": groups_of(funnel)["source"]}
    filters = [number for number, step in enumerate(funnel.steps) if step.dropped]
    height = 1.1 + 0.26 * (len(filters) + 1)
    figure = Figure(figsize=(8.0, height * len(kinds)), layout="constrained", dpi=_DOTS_PER_INCH)
    for axes, (kind, groups) in zip(figure.subplots(len(kinds), squeeze=False)[:, 0], kinds.items(), strict=True):
        _draw(axes, kind, groups, filters=filters, funnel=funnel)
    # Drawn once; savefig draws twice. No date in the file: the same figures must give the same bytes.
    FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


def _draw(axes: Axes, kind: str, groups: dict[str, list[FunnelStep]], *, filters: list[int], funnel: Funnel) -> None:
    """Stacked bars: rows read, then rows left after each filter that dropped some."""
    if kind == "strength":
        groups = {"0 (tie)" if name == "0" else name: steps for name, steps in groups.items()}
    bars = _bars(groups, filters=filters)
    names = ["read", *(f"after {humanize(funnel.steps[number].reason).lower()}" for number in filters)]
    left = [0] * len(names)
    for (name, counts), colour in zip(bars.items(), (*_COLOURS, _OTHERS_COLOUR), strict=False):
        axes.barh(range(len(names)), counts, left=left, height=0.7, color=colour, label=name)
        left = [before + count for before, count in zip(left, counts, strict=True)]
    for place, total in enumerate(left):
        axes.annotate(f" {total:,}", (total, place), va="center", fontsize=7, color=_LINE, annotation_clip=False)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlim(0, 1.08 * max(left, default=1) or 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"Rows left after each filter, by {kind}", fontsize=9, loc="left")
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))


def _bars(groups: dict[str, list[FunnelStep]], *, filters: list[int]) -> dict[str, list[int]]:
    """Return each group's rows read and left after each filter; beyond six groups, the smaller ones are summed."""
    counts = {
        name: [steps[0].rows_in if steps else 0, *(steps[number].rows_out for number in filters)]
        for name, steps in groups.items()
    }
    names = list(counts)
    bars = {_label(name): counts[name] for name in names[:_MAX_GROUPS]}
    if len(names) > _MAX_GROUPS:
        rest = [counts[name] for name in names[_MAX_GROUPS:]]
        bars[f"{len(rest)} others"] = [sum(column) for column in zip(*rest, strict=True)]
    return bars


def _label(name: str) -> str:
    """A name of the data as plain text: matplotlib reads `$` as mathematics, and hides labels that begin with `_`."""
    return " " + one_line(name, 24).replace("$", r"\$")
