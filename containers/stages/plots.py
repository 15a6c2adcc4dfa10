"""Figures of the reward-model evaluation as PNG files."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from containers.contracts.outcome import Metric
from containers.contracts.records import PairFileEvaluation

_RIGHT, _WRONG, _LINE = "#2a6f97", "#d1495b", "#5c6670"
_SIZE_INCHES = (6.0, 3.2)
_DOTS_PER_INCH = 130


def write_reward_model_plots(files: Sequence[PairFileEvaluation], folder: Path) -> None:
    """Write `margins_<file>.png`, `calibration_<file>.png` and `accuracy_<file>.png` for each file that has pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if file.num_pairs:
            _write(folder / f"margins_{file.name}.png", file, _draw_margins)
            _write(folder / f"calibration_{file.name}.png", file, _draw_calibration)
            _write(folder / f"accuracy_{file.name}.png", file, _draw_groups)


def _draw_margins(axes: Axes, file: PairFileEvaluation) -> None:
    """How many pairs have which margin; what lies left of zero is ordered wrongly."""
    if file.margins is None:
        return
    edges = file.margins.edges
    widths = [right - left for left, right in pairwise(edges)]
    colours = [_RIGHT if (left + right) / 2 > 0 else _WRONG for left, right in pairwise(edges)]
    axes.bar(edges[:-1], file.margins.counts, width=widths, align="edge", color=colours)
    axes.axvline(0, color=_LINE, linewidth=1)
    axes.set(xlabel="Margin: score(chosen) − score(rejected)", ylabel="Pairs", title=_title("Margins", file))


def _draw_calibration(axes: Axes, file: PairFileEvaluation) -> None:
    """How often the preferred side is the right one, against how sure the model is."""
    predicted = [item.mean_predicted for item in file.calibration]
    observed = [item.observed for item in file.calibration]
    largest = max((item.count for item in file.calibration), default=1)
    axes.plot([0.5, 1], [0.5, 1], color=_LINE, linewidth=1, linestyle="--")
    axes.plot(predicted, observed, color=_RIGHT, linewidth=1)
    axes.scatter(predicted, observed, s=[20 + 120 * item.count / largest for item in file.calibration], color=_RIGHT)
    axes.set(
        xlabel="Predicted: sigmoid(|margin|)",
        ylabel="Observed: share ordered rightly",
        xlim=(0.48, 1.02),
        ylim=(-0.02, 1.04),
        title=_title("Calibration", file),
    )


def _draw_groups(axes: Axes, file: PairFileEvaluation) -> None:
    """Accuracy with interval, of all pairs and by domain, strength and length difference."""
    groups: list[tuple[str, Metric]] = [("all", file.accuracy)] if file.accuracy else []
    groups += [(metric.name, metric) for metric in file.by_domain]
    groups += [(f"strength {metric.name}", metric) for metric in file.by_strength]
    groups += [(f"chosen {metric.name}", metric) for metric in file.by_length_difference]
    values = [metric.value for _, metric in groups]
    below = [max(0.0, m.value - (m.value if m.ci_low is None else m.ci_low)) for _, m in groups]
    above = [max(0.0, (m.value if m.ci_high is None else m.ci_high) - m.value) for _, m in groups]
    places = list(range(len(groups)))[::-1]
    axes.errorbar(values, places, xerr=[below, above], fmt="o", color=_RIGHT, ecolor=_LINE, elinewidth=1, capsize=2)
    axes.axvline(0.5, color=_WRONG, linewidth=1, linestyle="--")
    axes.set_yticks(places, [f"{name} ({metric.count:,})" for name, metric in groups], fontsize=7)
    axes.set(xlabel="Accuracy", xlim=(-0.02, 1.02), title=_title("Accuracy by group", file))


def _title(what: str, file: PairFileEvaluation) -> str:
    return f"{what}, {file.name}, {file.num_pairs:,} pairs"


def _write(path: Path, file: PairFileEvaluation, draw: Callable[[Axes, PairFileEvaluation], None]) -> None:
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    draw(axes, file)
    axes.spines[["top", "right"]].set_visible(False)
    # No date in the file: the same figures must give the same bytes.
    figure.savefig(path, dpi=_DOTS_PER_INCH, metadata={"Software": None})
