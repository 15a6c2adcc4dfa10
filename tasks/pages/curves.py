"""Which curves of a training a person looks at first, as plots and as a table of their last figures. Pure."""

from collections.abc import Iterable, Mapping

from containers.contracts.names import StageName
from containers.formatting import humanize, markdown_table, number
from tasks.pages.plots import Curve, line_plot
from tasks.store.events import MetricPoint

# Stage → plots: title, and the curves in it by their names in events.jsonl and in people's words.
_PLOTS: Mapping[StageName, tuple[tuple[str, Mapping[str, str]], ...]] = {
    StageName.TRAIN_SFT: (("Loss", {"loss": "training", "eval_loss": "validation"}),),
    StageName.TRAIN_REWARD_MODEL: (
        ("Loss", {"loss": "training", "eval_loss": "validation"}),
        ("Accuracy", {"accuracy": "training", "eval_accuracy": "validation"}),
    ),
    StageName.TRAIN_POLICY: (("Reward", {"reward": "reward"}), ("KL to the start model, nats", {"kl": "kl"})),
}


def curve_plots(stage: StageName, points: Iterable[MetricPoint]) -> str:
    """The stage's plots as Markdown, one below the other; empty where nothing can be drawn."""
    by_name: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        by_name.setdefault(point.key, []).append((float(point.step), point.value))
    plots = (
        line_plot(title, [Curve(label, tuple(sorted(by_name.get(name, ())))) for name, label in curves.items()])
        for title, curves in _PLOTS.get(stage, ())
    )
    return "\n\n".join(plot for plot in plots if plot)


def plotted_names(stage: StageName) -> frozenset[str]:
    """Names of the curves that `curve_plots` draws."""
    return frozenset(name for _, curves in _PLOTS.get(stage, ()) for name in curves)


def latest_figures(latest: Mapping[str, MetricPoint]) -> str:
    """The last value of each curve, as a Markdown table; empty where there is none."""
    rows = [(humanize(key), number(float(point.value)), f"{point.step:,}") for key, point in latest.items()]
    return markdown_table(("Figure", "Last value", "At step"), rows, right=(1, 2))
