"""The report's plots, each a function from records to a `Plot`. Texts from datasets are shortened."""

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator, PercentFormatter

from containers.contracts.certificate import CalibrationBin, SuiteEvaluation
from containers.contracts.funnel import Funnel
from containers.contracts.outcome import Metric
from containers.contracts.records import Histogram
from containers.document.model import Plot
from containers.document.plot_style import (
    AQUA,
    BLUE,
    GREY,
    INK,
    INK_2,
    MUTED,
    ORANGE,
    axes,
    axis_label,
    tick_number,
)
from containers.formatting import humanize, number, percent

Points = Sequence[tuple[int, float]]

_MAX_POINTS = 400
_SMOOTH_FROM = 40
_MAX_ROWS = 14
_COLOURS = (BLUE, ORANGE, AQUA, INK_2, GREY)
# Marks of a plot that are closer than this share of its range have their labels on different sides.
_NEAR = 0.15
_ABOVE, _BELOW = ((-16, 4), (5, 4)), ((5, -10), (-16, -10))


def curve_plot(
    title: str, series: Sequence[tuple[str, Points]], *, unit: str, salt: str, note: str = ""
) -> Plot | None:
    """Curves over optimizer steps; None where nothing was recorded.

    A series of more than 40 points is drawn faint, with its running mean over a twentieth of the points on top.
    """
    drawn = [(label, points) for label, points in series if points]
    if not drawn:
        return None
    smoothed = 0
    with axes(2.5, salt=salt) as (ax, svg):
        for (label, points), colour in zip(drawn, _COLOURS, strict=False):
            steps, values = [step for step, _ in points], [value for _, value in points]
            if len(points) > _SMOOTH_FROM:
                smoothed = max(3, len(points) // 20 | 1)
                ax.plot(*_thin(steps, values), color=colour, alpha=0.28, linewidth=1)
                values = running_mean(values, smoothed)
            few = len(points) <= 12
            ax.plot(*_thin(steps, values), color=colour, label=label, marker="o" if few else None, markersize=4)
        ax.set_xlabel("optimizer step")
        ax.set_ylabel(unit)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        ax.yaxis.set_major_locator(MaxNLocator(nbins=5))
        ax.xaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.yaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.grid(axis="x", visible=False)
        if len(drawn) > 1:
            ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, borderaxespad=0.2, columnspacing=1.4)
        names = [f"{label} " if len(drawn) > 1 else "" for label, _ in drawn]
        ends = ", ".join(
            f"{name}{number(points[0][1])} → {number(points[-1][1])}"
            for name, (_, points) in zip(names, drawn, strict=True)
        )
        mean = f" Bold: running mean over {smoothed} points." if smoothed else ""
        return Plot(title, svg(), note=f"First to last: {ends}.{mean} {note}".rstrip())


def frontier_plot(title: str, points: Sequence[tuple[float, float, str, bool]], *, salt: str) -> Plot | None:
    """Reward over the root of the KL, in the order of the steps; None for fewer than two points.

    Gold rewards rise and fall smoothly over that root (Gao et al. 2022, arXiv:2210.10760).

    Args:
        points: KL in nats, reward, a label, and whether the step was trusted: a filled mark.
    """
    if len(points) < 2:
        return None
    with axes(2.6, salt=salt) as (ax, svg):
        places = [(math.sqrt(max(0.0, kl)), reward) for kl, reward, _, _ in points]
        ax.plot(*zip(*places, strict=True), color=BLUE, linewidth=1, alpha=0.5)
        offsets = _label_offsets(places)
        for (across, up), (_, _, label, is_trusted), offset in zip(places, points, offsets, strict=True):
            ax.plot([across], [up], "o", color=BLUE, markerfacecolor=BLUE if is_trusted else "none", markersize=6)
            ax.annotate(label, (across, up), offset, textcoords="offset points", color=INK_2)
        ax.set_xlabel("√KL to the start model, √nats")
        ax.set_ylabel("reward on held-out prompts")
        ax.xaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.yaxis.set_major_formatter(FuncFormatter(tick_number))
        return Plot(
            title, svg(), note="Each mark is a look, with its step. Filled: trusted; hollow: no gain was shown."
        )


def _label_offsets(places: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """Return where each mark has its label, in points from it: of close marks, the higher ones have theirs above."""
    wide, high = (max(values) - min(values) or 1.0 for values in zip(*places, strict=True))
    found: dict[int, tuple[int, int]] = {}
    for mark in sorted(range(len(places)), key=lambda mark: places[mark][1], reverse=True):
        across, up = places[mark]
        near = [
            other
            for other, (x, y) in enumerate(places)
            if other != mark and abs(x - across) < _NEAR * wide and abs(y - up) < _NEAR * high
        ]
        sides = _ABOVE + _BELOW if any(places[other][1] < up for other in near) else _BELOW + _ABOVE
        taken = {found[other] for other in near if other in found}
        found[mark] = next((side for side in sides if side not in taken), sides[0])
    return [found[mark] for mark in range(len(places))]


def accuracy_plot(
    title: str,
    groups: Sequence[tuple[str, Metric]],
    *,
    salt: str,
    minimums: Sequence[float | None] = (),
    note: str = "",
) -> Plot | None:
    """Accuracy with interval, one row per group; dashed at chance, a tick where a gate demands a minimum."""
    rows = list(groups)[:_MAX_ROWS]
    if not rows:
        return None
    with axes(0.75 + 0.3 * len(rows), salt=salt) as (ax, svg):
        ax.axvline(0.5, color=MUTED, linewidth=0.9, linestyle=(0, (3, 3)))
        lowest = 0.45
        for row, (_, metric) in enumerate(rows):
            low = metric.value if metric.ci_low is None else metric.ci_low
            high = metric.value if metric.ci_high is None else metric.ci_high
            lowest = min(lowest, low)
            ax.plot([low, high], [row, row], color=BLUE, linewidth=2.2, alpha=0.45)
            hollow = metric.origin == "estimated"
            face = "none" if hollow else BLUE
            ax.plot([metric.value], [row], "o", color=BLUE, markerfacecolor=face, markersize=6.5, clip_on=False)
            count = f"n = {metric.count:,}" if metric.count is not None else ""
            for text, offset, side, colour in ((percent(metric.value), 50, "right", INK), (count, 58, "left", INK_2)):
                ax.annotate(
                    text, (1, row), (offset, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
                    ha=side, va="center", color=colour, annotation_clip=False,
                )  # fmt: skip
        for row, minimum in enumerate(list(minimums)[: len(rows)]):
            if minimum is not None:
                ax.plot([minimum, minimum], [row - 0.32, row + 0.32], color=ORANGE, linewidth=2)
                lowest = min(lowest, minimum)
        ax.set_yticks(range(len(rows)), [axis_label(name) for name, _ in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        start = max(0.0, math.floor(lowest * 10 - 1e-9) / 10)
        ax.set_xlim(start, 1.0)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        ax.xaxis.set_major_locator(MultipleLocator(0.2 if start <= 0.4 else 0.1))
        ax.grid(axis="y", visible=False)
        ax.spines["left"].set_visible(False)
        left_out = len(groups) - len(rows)
        parts = (note, "Dashed: chance." + (" Orange: the gate's minimum." if any(minimums) else ""))
        more = f"{left_out:,} smaller groups are not drawn." if left_out > 0 else ""
        return Plot(title, svg(), note=" ".join(part for part in (*parts, more) if part))


def side_by_side_plot(
    title: str, models: Sequence[str], rows: Sequence[tuple[str, Sequence[Metric | None]]], *, salt: str
) -> Plot:
    """A dot with its interval for each suite and model, from 0 to 100 %; the models below each other."""
    height = len(models) + 1
    with axes(0.9 + 0.16 * height * len(rows), salt=salt) as (ax, svg):
        for index, model in enumerate(models):
            colour = _COLOURS[index % len(_COLOURS)]
            found = [(place, scores[index]) for place, (_, scores) in enumerate(rows)]
            for place, score in ((row * height + index, metric) for row, metric in found if metric is not None):
                if score.ci_low is not None and score.ci_high is not None:
                    ax.plot([score.ci_low, score.ci_high], [place, place], color=colour, linewidth=2.2, alpha=0.45)
                ax.plot([score.value], [place], "o", color=colour, markersize=5.5, clip_on=False)
                ax.annotate(percent(score.value), (1.02, place), va="center", annotation_clip=False)
            ax.plot([], [], "o", color=colour, label=axis_label(model))
        ax.set_yticks(
            [row * height + (len(models) - 1) / 2 for row in range(len(rows))], [axis_label(name) for name, _ in rows]
        )
        ax.set_ylim(len(rows) * height - 1, -1)
        ax.set_xlim(0, 1)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        ax.grid(axis="y", visible=False)
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, borderaxespad=0.2, columnspacing=1.4)
        return Plot(title, svg())


def histogram_plot(title: str, histogram: Histogram | None, *, unit: str, count_of: str, salt: str) -> Plot | None:
    """Draw bars: below zero orange, above it blue, the one that holds zero grey; None if there is nothing to count."""
    if histogram is None or not sum(histogram.counts) or len(histogram.edges) != len(histogram.counts) + 1:
        return None
    with axes(2.5, salt=salt) as (ax, svg):
        for (left, right), count in zip(pairwise(histogram.edges), histogram.counts, strict=True):
            colour = BLUE if left >= 0 else ORANGE if right <= 0 else GREY
            gap = (right - left) * 0.05
            ax.bar(left + gap, count, width=right - left - 2 * gap, align="edge", color=colour, linewidth=0)
        ax.axvline(0, color=INK_2, linewidth=0.9)
        ax.set_xlabel(unit)
        ax.set_ylabel(count_of)
        ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        ax.yaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.xaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.grid(axis="x", visible=False)
        straddles = any(left < 0 < right for left, right in pairwise(histogram.edges))
        grey = "; grey: the bar that holds zero" if straddles else ""
        note = f"{sum(histogram.counts):,} {count_of}. Blue: above zero; orange: below{grey}."
        return Plot(title, svg(), note=note)


def score_distribution_plot(suite: SuiteEvaluation, *, salt: str) -> Plot | None:
    """Draw the distributions of the scores of better and worse responses; None where there is no pair."""
    better, worse = suite.better_scores, suite.worse_scores
    if better is None or worse is None:
        return None
    with axes(2.5, salt=salt) as (ax, svg):
        for histogram, colour, label in ((worse, ORANGE, "worse"), (better, BLUE, "better")):
            ax.stairs(histogram.counts, histogram.edges, fill=True, color=colour, alpha=0.4, linewidth=0, label=label)
            ax.stairs(histogram.counts, histogram.edges, color=colour, linewidth=1.2)
        ax.set_xlabel("score")
        ax.set_ylabel("responses")
        ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        ax.yaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.xaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.grid(axis="x", visible=False)
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, borderaxespad=0.2, columnspacing=1.4)
        note = f"{suite.num_pairs:,} pairs. The less the two overlap, the surer the order."
        return Plot(f"{humanize(suite.name)}: scores", svg(), note=note)


def calibration_plot(title: str, bins: Sequence[CalibrationBin], *, salt: str) -> Plot | None:
    """Predicted probability against how often it was right, with its interval, always on the same axes."""
    if not bins:
        return None
    with axes(2.7, salt=salt) as (ax, svg):
        ax.plot([0.5, 1], [0.5, 1], color=MUTED, linewidth=0.9, linestyle=(0, (3, 3)))
        predicted, observed = [item.mean_predicted for item in bins], [item.observed for item in bins]
        ends = [
            [item.observed - (item.observed if item.low is None else item.low) for item in bins],
            [(item.observed if item.high is None else item.high) - item.observed for item in bins],
        ]
        ax.errorbar(predicted, observed, yerr=ends, fmt="o", color=BLUE, markersize=5, elinewidth=1.2, clip_on=False)
        for axis, step in ((ax.xaxis, 0.1), (ax.yaxis, 0.2)):
            axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
            axis.set_major_locator(MultipleLocator(step))
        ax.set_xlim(0.49, 1.01)
        ax.set_ylim(-0.02, 1.02)
        ax.set_xlabel("confidence of the prediction")
        ax.set_ylabel("how often it was right")
        pairs = sum(item.count for item in bins)
        note = f"{pairs:,} pairs in {len(bins)} bins, with intervals over prompts. On the dashed line it is calibrated."
        return Plot(title, svg(), note=note)


def funnel_plot(funnel: Funnel, *, salt: str) -> Plot | None:
    """Draw one bar for each use of rows and each reason to drop them; the bars add up to the rows read."""
    if not funnel.rows_read:
        return None
    used = {
        "pairs": [
            ("Train the reward model", funnel.train_pairs, BLUE),
            ("Validate the reward model", funnel.validation_pairs, BLUE),
            ("Set aside for the policy", funnel.pairs_set_aside_for_policy, AQUA),
        ],
        "prompts": [
            ("Train the policy", funnel.policy_train_prompts, BLUE),
            ("Judge the policy", funnel.policy_eval_prompts, BLUE),
            ("Compare champions", funnel.policy_frozen_prompts, AQUA),
        ],
        "demonstrations": [
            ("Fine-tune", funnel.train_demonstrations, BLUE),
            ("Choose a checkpoint", funnel.validation_demonstrations, BLUE),
        ],
    }[funnel.kind]
    dropped = [(humanize(step.reason), step.dropped, GREY) for step in funnel.steps]
    bars = [bar for bar in used if bar[1]] + sorted((bar for bar in dropped if bar[1]), key=lambda bar: -bar[1])
    bars, rest = bars[:_MAX_ROWS], bars[_MAX_ROWS:]
    if rest:
        bars.append((f"{len(rest)} more reasons", sum(bar[1] for bar in rest), GREY))
    largest = max((bar[1] for bar in bars), default=1)
    with axes(0.35 + 0.27 * len(bars), salt=salt) as (ax, svg):
        for row, (_, count, colour) in enumerate(bars):
            ax.barh(row, count, height=0.62, color=colour, linewidth=0)
            share = percent(count / funnel.rows_read)
            for text, offset, tint in ((f"{count:,}", 40, INK), (share, 88, INK_2)):
                ax.annotate(
                    text, (1, row), (offset, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
                    ha="right", va="center", color=tint, annotation_clip=False,
                )  # fmt: skip
        ax.set_yticks(range(len(bars)), [axis_label(name) for name, _, _ in bars])
        ax.set_ylim(len(bars) - 0.4, -0.6)
        ax.set_xlim(0, largest)
        ax.set_xticks([])
        ax.grid(visible=False)
        ax.spines["bottom"].set_visible(False)
        note = f"Shares of the {funnel.rows_read:,} rows read. Blue: used; green: set aside; grey: dropped."
        return Plot("Where every row went", svg(), note=note)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over the `window` values centred on each place; fewer at the ends.

    Example: [0, 3, 6] with window 3 gives [1.5, 3, 4.5].
    """
    half = window // 2
    means = []
    for place in range(len(values)):
        near = values[max(0, place - half) : place + half + 1]
        means.append(sum(near) / len(near))
    return means


def _thin(steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    """Return at most 400 points, always with the last one."""
    stride = -(-len(steps) // _MAX_POINTS)
    chosen = list(range(0, len(steps), stride))
    if chosen and chosen[-1] != len(steps) - 1:
        chosen.append(len(steps) - 1)
    return [steps[place] for place in chosen], [values[place] for place in chosen]
