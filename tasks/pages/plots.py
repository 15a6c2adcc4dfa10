"""Plots as Markdown for Prefect, and a training's curves."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from containers.contracts.names import StageName
from containers.formatting import humanize, markdown_table, markdown_text, number, one_line
from tasks.store.events import MetricPoint

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 34
_MAX_POINTS = 240
_COLOURS = ("#2a78d6", "#eb6834", "#1baf7a", "#b5b3a8")
_INK, _MUTED, _GRID = "#0b0b0b", "#6b6a66", "#e1e0d9"
_BAR_HEIGHT, _NAME_WIDTH, _VALUE_WIDTH = 22, 190, 90
# Stage → plots: title, and each curve's name in events.jsonl with its label.
_PLOTS: Mapping[StageName, tuple[tuple[str, Mapping[str, str]], ...]] = {
    StageName.TRAIN_SFT: (("Loss", {"loss": "training", "eval_loss": "validation"}),),
    StageName.TRAIN_REWARD_MODEL: (
        ("Loss", {"loss": "training", "eval_loss": "validation"}),
        ("Accuracy", {"accuracy": "training", "eval_accuracy": "validation"}),
    ),
    StageName.TRAIN_POLICY: (("Reward", {"reward": "reward"}), ("KL to the start model, nats", {"kl": "kl"})),
}


@dataclass(frozen=True)
class Curve:
    """A named curve; points that are not finite are left out of the plot."""

    name: str
    points: tuple[tuple[float, float], ...]


def line_plot(title: str, curves: Iterable[Curve], *, x_label: str = "step") -> str:
    """Return the curves in one plot as Markdown; empty if no curve has two points."""
    drawn = [Curve(curve.name, _thinned(curve.points)) for curve in curves]
    drawn = [curve for curve in drawn if len(curve.points) > 1]
    if not drawn:
        return ""
    x_low, x_high = _range(x for curve in drawn for x, _ in curve.points)
    y_low, y_high = _range(y for curve in drawn for _, y in curve.points)

    def place(x: float, y: float) -> str:
        right = _LEFT + (x - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)
        down = _TOP + (y_high - y) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)
        return f"{right:.1f},{down:.1f}"

    parts = [*_grid(y_low, y_high), *_x_axis(x_low, x_high, x_label)]
    for index, curve in enumerate(drawn):
        colour = _COLOURS[index % len(_COLOURS)]
        line = " ".join(place(x, y) for x, y in curve.points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return _image(title, _HEIGHT, [*_legend(title, [curve.name for curve in drawn]), *parts])


def bar_plot(title: str, bars: Sequence[tuple[str, float]]) -> str:
    """Return one horizontal bar per name as Markdown, all from zero; empty without bars."""
    if not bars:
        return ""
    most = max((value for _, value in bars), default=0) or 1
    space = _WIDTH - _NAME_WIDTH - _VALUE_WIDTH
    parts = _legend(title, [])
    for index, (name, value) in enumerate(bars):
        top = _TOP + index * _BAR_HEIGHT
        width = max(1.0, value / most * space)
        parts += [
            _text(_NAME_WIDTH - 8, top + 13, name, anchor="end"),
            f'<rect x="{_NAME_WIDTH}" y="{top}" width="{width:.1f}" height="{_BAR_HEIGHT - 6}" fill="{_COLOURS[0]}"/>',
            _text(_NAME_WIDTH + width + 6, top + 13, number(value)),
        ]
    return _image(title, _TOP + len(bars) * _BAR_HEIGHT + 8, parts)


def _thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return at most 240 points: the means of neighbours if there are more."""
    finite = [point for point in points if math.isfinite(point[1])]
    size = math.ceil(len(finite) / _MAX_POINTS) or 1
    groups = [finite[start : start + size] for start in range(0, len(finite), size)]
    return tuple((group[-1][0], sum(y for _, y in group) / len(group)) for group in groups)


def _range(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    low, high = min(known), max(known)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _grid(low: float, high: float) -> list[str]:
    parts = []
    for index in range(4):
        down = _TOP + index / 3 * (_HEIGHT - _TOP - _BOTTOM)
        value = high - index / 3 * (high - low)
        parts.append(f'<path d="M{_LEFT} {down:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, down + 4, number(float(value)), anchor="end"))
    return parts


def _x_axis(low: float, high: float, label: str) -> list[str]:
    bottom = _HEIGHT - 10
    return [
        _text(_LEFT, bottom, f"{low:,.0f}"),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, bottom, label, anchor="middle"),
        _text(_WIDTH - _RIGHT, bottom, f"{high:,.0f}", anchor="end"),
    ]


def _legend(title: str, names: Sequence[str]) -> list[str]:
    """Return the title, and after it the curves' names in their colours if there are several."""
    spans = [f'<tspan font-weight="bold" fill="{_INK}">{escape(one_line(title, 60))}</tspan>']
    if len(names) > 1:
        spans += [
            f'<tspan dx="14" fill="{_COLOURS[index % len(_COLOURS)]}">— {escape(one_line(name, 40))}</tspan>'
            for index, name in enumerate(names)
        ]
    return [f'<text x="12" y="20">{"".join(spans)}</text>']


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_MUTED}">{escape(one_line(text, 60))}</text>'


def _image(title: str, height: int, parts: Sequence[str]) -> str:
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" rx="6" fill="#fcfcfb"/>'
        f"{''.join(parts)}</svg>"
    )
    return f"![{markdown_text(title)}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def curve_plots(stage: StageName, points: Iterable[MetricPoint]) -> str:
    """Return the stage's plots as Markdown, one below the other; empty if nothing can be drawn."""
    by_name: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        by_name.setdefault(point.key, []).append((float(point.step), point.value))
    plots = (
        line_plot(title, [Curve(label, tuple(sorted(by_name.get(name, ())))) for name, label in curves.items()])
        for title, curves in _PLOTS.get(stage, ())
    )
    return "\n\n".join(plot for plot in plots if plot)


def plotted_names(stage: StageName) -> frozenset[str]:
    """Return the names of the curves that `curve_plots` draws."""
    return frozenset(name for _, curves in _PLOTS.get(stage, ()) for name in curves)


def latest_figures(latest: Mapping[str, MetricPoint]) -> str:
    """Return the last value of each curve as a Markdown table; empty without curves."""
    rows = [(humanize(key), number(float(point.value)), f"{point.step:,}") for key, point in latest.items()]
    return markdown_table(("Figure", "Last value", "At step"), rows, right=(1, 2))
