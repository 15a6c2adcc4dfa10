"""Plots of growth.md: lines over a growing number, both axes logarithmic."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from containers.document.plot_style import tick_number

_COLOURS = ("#2a78d6", "#eb6834", "#1baf7a", "#9d4edd", "#6c757d", "#d1495b")
_INK = "#52514e"

# Points: number on the x axis, and measurement.
Line = tuple[Sequence[float], Sequence[float]]


def write_plot(path: Path, lines: Mapping[str, Line], *, guide: Mapping[str, Line], along: str, up: str) -> None:
    """Write an SVG of the lines by name; the guides are dashed and grey. Same figures, same bytes.

    Args:
        along: label of the x axis.
        up: label of the y axis.
    """
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.size": 9}):
        figure = Figure(figsize=(6.5, 3.6), layout="constrained", facecolor="white")
        axes = figure.subplots()
        for (name, (places, values)), colour in zip(lines.items(), cycle(_COLOURS), strict=False):
            axes.plot(places, values, marker="o", markersize=3.5, linewidth=1.8, color=colour, label=name)
        for name, (places, values) in guide.items():
            axes.plot(places, values, linestyle="--", linewidth=1.2, color="#b5b3a8", label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = sorted({place for places, _ in lines.values() for place in places})
        axes.set_xticks(ticks, [tick_number(place) for place in ticks])
        axes.yaxis.set_major_formatter(lambda value, _: tick_number(value))
        axes.minorticks_off()
        axes.set_xlabel(along, color=_INK)
        axes.set_ylabel(up, color=_INK)
        axes.grid(color="#e1e0d9", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None, "Creator": None})
