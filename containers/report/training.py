"""How a model was trained: its facts, its figures and its curves."""

from collections.abc import Sequence

from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.pipeline import STAGE_FACTS
from containers.contracts.records import TrainingInfo
from containers.curve_alarms import alarms
from containers.document.model import Block, Facts, Note, Pairs, Plots, Section, figures_table
from containers.formatting import duration, humanize, number, percent, size
from containers.report.curves import Curves

_MAX_NON_FINITE = 5


def training_section(stage: StageName, info: TrainingInfo, curves: Curves, metrics: Sequence[Metric]) -> Section:
    """Return a training by itself, with the figures that its stage returned."""
    figures = (figures_table([(humanize(metric.name), metric) for metric in metrics]),) if metrics else ()
    return Section(humanize(stage), (*figures, *training_blocks(stage, info, curves)))


def training_blocks(stage: StageName, info: TrainingInfo, curves: Curves) -> tuple[Block, ...]:
    """Return facts and curves, and values that were not finite."""
    from containers.report.plots import training_plots

    odd = curves.non_finite
    listed = "; ".join(odd[:_MAX_NON_FINITE])
    return (
        Facts(training_facts(info), is_wide=True),
        *_alarms(stage, curves),
        Plots(training_plots(stage, curves), empty="No curves were recorded."),
        *((Note(f"Values that were not finite, {len(odd)} in all: {listed}.", "caveat"),) if odd else ()),
    )


def _alarms(stage: StageName, curves: Curves) -> tuple[Note, ...]:
    """Return what the curves of a policy say went wrong, a note each."""
    if STAGE_FACTS[stage].trains != "policy":
        return ()
    values = {name: [value for _, value in points] for name, points in curves.points.items()}
    return tuple(Note(text, "caveat") for text in alarms(values).values())


def training_facts(info: TrainingInfo) -> Pairs:
    """How a model was trained, as label and value; empty values are not known."""
    steps = f"{info.num_steps:,}" + (
        "" if info.num_steps == info.planned_steps else f" of {info.planned_steps:,} planned"
    )
    resumed = "" if info.resumed_from_step is None else f", resumed from step {info.resumed_from_step:,}"
    name = info.best_metric_name.removeprefix("eval_").replace("_", " ")
    best = f"held-out {name} {number(info.best_metric)} at step {number(info.best_step)}"
    share = percent(info.trainable_parameters / info.total_parameters)
    return (
        ("Algorithm", info.algorithm),
        ("Optimizer steps", f"{steps}{resumed}"),
        ("Global batch size", info.global_batch_size),
        ("Examples", info.num_examples),
        ("Left out as too long", info.examples_left_out),
        ("Left out for a token without a row", info.examples_without_row or ""),
        ("Parameters trained", f"{info.trainable_parameters:,} of {info.total_parameters:,} ({share})"),
        ("Best checkpoint", best if info.best_metric is not None else ""),
        ("Training time", duration(info.duration_s)),
        ("Peak memory", size(info.peak_memory_bytes) if info.peak_memory_bytes else ""),
        ("Device", " · ".join(part for part in (info.device, info.precision) if part)),
    )
