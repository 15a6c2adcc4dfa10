"""The funnel as a picture: how many rows of each group are left after each filter."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from containers.contracts.records import Funnel
from containers.data.funnel_table import GroupStep, groups_of
from containers.formatting import humanize, one_line

FUNNEL_PLOT_FILE = "funnel.png"

_COLOURS = ("#2a6f97", "#e09f3e", "#5a9367", "#9d4edd", "#d1495b", "#6c757d")
_OTHERS_COLOUR, _LINE = "#ced4da", "#5c6670"
_MAX_GROUPS = len(_COLOURS)
_DOTS_PER_INCH = 130


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


def _draw(axes: Axes, kind: str, groups: dict[str, list[GroupStep]], *, filters: list[int], funnel: Funnel) -> None:
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


def _bars(groups: dict[str, list[GroupStep]], *, filters: list[int]) -> dict[str, list[int]]:
    """For each group its rows read and left after those filters; beyond six groups, the smaller ones together."""
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
