"""Each arm as a point: how far its policy moved from the start model, and what it gained."""

import math
from collections.abc import Sequence

from matplotlib.ticker import FuncFormatter

from containers.document.model import Plot
from containers.document.plot_style import AQUA, BLUE, GREY, INK_2, ORANGE, axes, axis_label, tick_number

_COLOURS = (BLUE, ORANGE, AQUA, INK_2, GREY)
_MARKS = ("o", "s", "^", "D", "v", "P", "X")


def arms_frontier(
    title: str,
    points: Sequence[tuple[str, float, float, tuple[float, float] | None]],
    *,
    unit: str,
    salt: str,
    note: str = "",
) -> Plot | None:
    """Gain over the root of the KL, a point for each training; None without a point.

    Args:
        points: arm, KL in nats, gain, and the gain's interval.
    """
    if not points:
        return None
    arms = list(dict.fromkeys(arm for arm, _, _, _ in points))
    with axes(2.9, salt=salt) as (ax, svg):
        for place, arm in enumerate(arms):
            colour, mark = _COLOURS[place % len(_COLOURS)], _MARKS[place % len(_MARKS)]
            for number, (_, kl, gain, interval) in enumerate(point for point in points if point[0] == arm):
                across = math.sqrt(max(0.0, kl))
                if interval is not None:
                    ax.plot([across, across], interval, color=colour, linewidth=1.4, alpha=0.45)
                label = axis_label(arm) if number == 0 else None
                ax.plot([across], [gain], mark, color=colour, markersize=6.5, label=label)
        ax.set_xlabel("√KL to the start model, √nats")
        ax.set_ylabel(unit)
        ax.xaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.yaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.margins(0.12)
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, borderaxespad=0.2, columnspacing=1.4)
        return Plot(title, svg(), note=f"A mark is one training. {note}".rstrip())
