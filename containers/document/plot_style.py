"""The style of all plots, and matplotlib figures as small SVG, which follows the theme of the page that it is in."""

import io
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from containers.formatting import number, one_line

# Colours of the light theme. In the SVG each becomes the page's variable, so the dark theme recolours the plots.
INK, INK_2, MUTED = "#0b0b0b", "#52514e", "#898781"
GRID, AXIS = "#e1e0d9", "#c3c2b7"
BLUE, ORANGE, AQUA, GREY = "#2a78d6", "#eb6834", "#1baf7a", "#b5b3a8"
VARIABLES = {
    INK: "--ink", INK_2: "--ink-2", MUTED: "--muted", GRID: "--grid", AXIS: "--axis",
    BLUE: "--blue", ORANGE: "--orange", AQUA: "--aqua", GREY: "--grey",
}  # fmt: skip
_WIDTH_IN = 5.0
_drawing = threading.Lock()
_FONT_PT = 9

_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a `$` in a domain's name is a dollar sign
    "axes.unicode_minus": True,
    "font.family": ["DejaVu Sans"],
    "font.size": _FONT_PT,
    "text.color": INK_2,
    "axes.labelcolor": INK_2,
    "axes.labelsize": _FONT_PT,
    "axes.edgecolor": AXIS,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": _FONT_PT,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK_2,
    "ytick.labelcolor": INK_2,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 5,
    "ytick.major.pad": 5,
    "legend.frameon": False,
    "legend.fontsize": _FONT_PT,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
}


@contextmanager
def axes(height_in: float, *, salt: str) -> Iterator[tuple[Axes, Callable[[], str]]]:
    """Axes in the common style, and the function that gives the finished SVG; call it inside the block.

    Matplotlib's settings are those of the process, so one thread at a time draws.

    Args:
        salt: differs between the plots of a page, so that their element ids differ.
    """
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    with _drawing, mpl.rc_context({**_STYLE, "svg.hashsalt": salt}), warnings.catch_warnings():
        # The page's own fonts draw the text; for a glyph that DejaVu lacks, only the measured width is a guess.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        yield figure.subplots(), lambda: _svg(figure)


def axis_label(text: str, *, limit: int = 26) -> str:
    """Foreign text short enough for a tick label."""
    return one_line(text, limit) if len(text) <= limit else f"{one_line(text[: limit - 1], limit)}…"


def tick_number(value: float, _position: int | None = None) -> str:
    """A tick's number with thousands separators and no needless zeros."""
    if abs(value) >= 1000:
        return number(round(value))
    return f"{value:.6g}".replace("-", "−")


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*</defs>", "", svg)
    svg = re.sub(r' id="[A-Za-z_0-9]*?(?:\.[a-z]+)?_\d+"', "", svg)
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", svg)
    return re.sub(r">\s+<", "><", svg)
