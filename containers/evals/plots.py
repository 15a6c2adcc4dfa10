"""Figures of the reward-model evaluation as PNG files."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from containers.contracts.certificate import SuiteEvaluation
from containers.contracts.outcome import Metric

_RIGHT, _WRONG, _LINE = "#2a6f97", "#d1495b", "#5c6670"
_SIZE_INCHES = (6.0, 3.2)
_DOTS_PER_INCH = 130


def write_reward_model_plots(suites: Sequence[SuiteEvaluation], folder: Path) -> None:
    """Write `margins_`, `calibration_` and `accuracy_<suite>.png` for each suite that has pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for suite in suites:
        for name, draw in _PLOTS.items() if suite.num_pairs else ():
            figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
            axes = figure.subplots()
            draw(axes, suite)
            axes.spines[["top", "right"]].set_visible(False)
            # No date in the file: the same figures must give the same bytes.
            figure.savefig(folder / f"{name}_{suite.name}.png", dpi=_DOTS_PER_INCH, metadata={"Software": None})


def _draw_margins(axes: Axes, suite: SuiteEvaluation) -> None:
    """Draw the number of pairs by margin; the model orders those left of zero wrongly."""
    if suite.margins is None:
        return
    edges = suite.margins.edges
    widths = [right - left for left, right in pairwise(edges)]
    colours = [_RIGHT if (left + right) / 2 > 0 else _WRONG for left, right in pairwise(edges)]
    axes.bar(edges[:-1], suite.margins.counts, width=widths, align="edge", color=colours)
    axes.axvline(0, color=_LINE, linewidth=1)
    axes.set(xlabel="Margin: score(chosen) − score(rejected)", ylabel="Pairs", title=_title("Margins", suite))


def _draw_calibration(axes: Axes, suite: SuiteEvaluation) -> None:
    """Draw how often the preferred side is the right one, with its interval, against the model's confidence."""
    predicted, observed = (
        [item.mean_predicted for item in suite.calibration],
        [item.observed for item in suite.calibration],
    )
    below = [item.observed - (item.observed if item.low is None else item.low) for item in suite.calibration]
    above = [(item.observed if item.high is None else item.high) - item.observed for item in suite.calibration]
    axes.plot([0.5, 1], [0.5, 1], color=_LINE, linewidth=1, linestyle="--")
    axes.errorbar(
        predicted, observed, yerr=[below, above], fmt="o", color=_RIGHT, ecolor=_LINE, elinewidth=1, capsize=2
    )
    axes.set(
        xlabel="Predicted: sigmoid(|margin|)",
        ylabel="Observed: share ordered rightly",
        xlim=(0.49, 1.01),
        ylim=(-0.02, 1.02),
        title=_title("Calibration", suite),
    )


def _draw_groups(axes: Axes, suite: SuiteEvaluation) -> None:
    """Accuracy with interval, of all pairs and by subset, strength and length difference."""
    groups: list[tuple[str, Metric]] = [("all pairs", suite.accuracy)] if suite.accuracy else []
    groups += [(metric.name, metric) for metric in suite.subsets]
    groups += [(f"strength {metric.name}", metric) for metric in suite.by_strength]
    groups += [(f"chosen {metric.name}", metric) for metric in suite.length.by_length_difference]
    values = [metric.value for _, metric in groups]
    below = [max(0.0, m.value - (m.value if m.ci_low is None else m.ci_low)) for _, m in groups]
    above = [max(0.0, (m.value if m.ci_high is None else m.ci_high) - m.value) for _, m in groups]
    places = list(range(len(groups)))[::-1]
    axes.errorbar(values, places, xerr=[below, above], fmt="o", color=_RIGHT, ecolor=_LINE, elinewidth=1, capsize=2)
    axes.axvline(0.5, color=_WRONG, linewidth=1, linestyle="--")
    axes.set_yticks(places, [f"{name} ({metric.count:,})" for name, metric in groups], fontsize=7)
    axes.set(xlabel="Accuracy", xlim=(-0.02, 1.02), title=_title("Accuracy by group", suite))


def _title(what: str, suite: SuiteEvaluation) -> str:
    return f"{what}, {suite.name}, {suite.num_pairs:,} pairs"


_PLOTS = {"margins": _draw_margins, "calibration": _draw_calibration, "accuracy": _draw_groups}
