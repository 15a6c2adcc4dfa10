"""How a model was trained: its facts, its figures and its curves."""

from collections.abc import Sequence

from containers.contracts.evidence import Evidence, EvidenceLook
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.pipeline import STAGE_FACTS
from containers.contracts.records import TrainingInfo
from containers.curve_alarms import alarms
from containers.document.model import (
    Answer,
    Beside,
    Block,
    Facts,
    Fold,
    Note,
    Pairs,
    Plots,
    Sample,
    Samples,
    Section,
    Table,
    Text,
    Value,
    figures_table,
    heads,
)
from containers.formatting import duration, humanize, interval, number, percent, quantity, size
from containers.report.curves import Curves

_MAX_NON_FINITE = 5
# Which observations a figure has, where its name says too little.
_OBSERVATIONS = {"validation_accuracy": "tune pairs, on which the checkpoint was chosen"}


def figure_label(name: str) -> Text:
    """The name of a stage's figure as a title, with what it was measured on where the title leaves that open."""
    return Text(humanize(name), sub=_OBSERVATIONS.get(name, ""))


def training_section(
    stage: StageName, info: TrainingInfo, curves: Curves, metrics: Sequence[Metric], evidence: Evidence | None = None
) -> Section:
    """Return a training by itself, with the figures that its stage returned."""
    figures = (figures_table([(figure_label(metric.name), metric) for metric in metrics]),) if metrics else ()
    looks = evidence_blocks(evidence, info) if evidence is not None else ()
    return Section(humanize(stage), (*looks, *figures, *training_blocks(stage, info, curves)))


def evidence_blocks(evidence: Evidence, info: TrainingInfo) -> tuple[Block, ...]:
    """Return what was found about the policy while it trained: which step is published and why, look by look."""
    from containers.report.figures import frontier_plot

    points = [] if evidence.start is None else [(evidence.start, True)]
    points += [(look, look.consequence == "trusted") for look in evidence.looks]
    marks = [(point.kl, point.reward, str(point.step), trusted) for point, trusted in points if point.kl is not None]
    frontier = frontier_plot("Reward over the root of the KL", marks, salt="evidence")
    agreement = evidence.rank_agreement
    notes: tuple[Block, ...] = (
        *((Note(_judged_by(evidence, info), "quiet"),) if evidence.judge else ()),
        *((Note(_agreement_text(agreement, evidence.judge), "quiet"),) if agreement is not None else ()),
    )
    return (
        Note(_published(evidence, info), "lead"),
        *((_looks(evidence),) if evidence.looks else ()),
        *((Beside(((Plots((frontier,)),), notes)),) if frontier is not None else notes),
        *((Fold("Start, middle and end on the same prompts", (_answers(evidence),)),) if evidence.looks else ()),
    )


def _published(evidence: Evidence, info: TrainingInfo) -> str:
    step, last = evidence.published_step, info.num_steps
    ended = f"Training ended at step {last:,} of {info.planned_steps:,}: {evidence.ended_because}. "
    which = f"Step {step:,} is published" if step else "The start model is published unchanged"
    if not evidence.judge:
        why = ", the last one while every meter was inside its limits" if evidence.ended_because else ", the last one"
        seen = "No judge looked at the policy while it trained; only meters did."
        return f"{ended if evidence.ended_because else ''}{which}{why}. {seen}"
    if step == last and not any(look.consequence == "trusted" and look.step == step for look in evidence.looks):
        return f"{which}, the last one, although its gain was not shown (train_policy.evidence.on_no_gain: note)."
    why = (
        f": the last step that {evidence.judge} found better than the one trusted before it"
        if step
        else f": {evidence.judge} found no step better than it"
    )
    return f"{ended if evidence.ended_because else ''}{which}{why}."


def _judged_by(evidence: Evidence, info: TrainingInfo) -> str:
    part = (
        f"It is no independent judge: {evidence.part_in_training}; it judged prompts that train nothing."
        if evidence.part_in_training
        else "It took no part in training."
    )
    power = ""
    if evidence.least_shown is not None:
        power = (
            f" A look shows a true win rate of {percent(evidence.least_shown)} or more in four of five cases; smaller "
            "gains need more pairs (num_pairs) or looks that are farther apart (steps)."
        )
    share = percent(evidence.duration_s / info.duration_s) if info.duration_s else "–"
    return (
        f"{evidence.judge}: {evidence.judge_shown}. {part} It looked {len(evidence.looks)} times, at "
        f"{evidence.num_prompts:,} held-out prompts; that took {duration(evidence.duration_s)}, {share} of the time."
        f"{power}"
    )


def _agreement_text(agreement: Metric, judge: str) -> str:
    return (
        f"Before the first step, reward and {judge} ordered the start model's answers to {agreement.count:,} prompts "
        f"with a rank correlation of {agreement.value:.2f} ({interval(agreement)}); 0.8 is the published threshold for "
        "a reward that can be trained on."
    )


def _looks(evidence: Evidence) -> Table:
    columns = ("Look", "Against", "Won, tied, lost", "Win rate", "Reward", "KL", "What followed")
    return Table(heads(*columns, numbers=5), tuple(map(_look_row, evidence.looks)))


def _look_row(look: EvidenceLook) -> tuple[Value, ...]:
    followed = {
        "trusted": Text("trusted", tone="good"),
        "goes on": Text("shown to be worse" if look.shown == "worse" else "no gain shown"),
        "ends": Text("training ended", tone="warn"),
        "rolls back": Text("rolled back, twice the beta", tone="warn"),
    }[look.consequence]
    others = "; ".join(f"{name}: {percent(rate)}" for name, rate in look.others)
    return (
        Text(f"step {look.step:,}", sub=f"early: {look.because}" if look.because else ""),
        f"step {look.against:,}" if look.against else "the start model",
        f"{look.num_wins:,}, {look.num_ties:,}, {look.num_losses:,}",
        Text("–" if look.win_rate is None else percent(look.win_rate), sub=others),
        quantity(look.reward, "score"),
        "–" if look.kl is None else quantity(look.kl, "nats"),
        followed,
    )


def _answers(evidence: Evidence) -> Samples:
    """Return what the policy wrote on the same prompts at the start, in the middle, and where it is published."""
    points = [point for point in (evidence.start, *evidence.looks) if point is not None and point.samples]
    published = next((place for place, point in enumerate(points) if point.step == evidence.published_step), 0)
    places = sorted({0, len(points) // 2, published, len(points) - 1})
    items = tuple(
        Sample(
            first.prompt,
            tuple(
                Answer(_named(points[place].step, evidence), sample.answer, sample.reward, False)
                for place in places
                for sample in points[place].samples[which : which + 1]
            ),
            Text(f"reward {number(first.reward)} → {number(points[published].samples[which].reward)}"),
        )
        for which, first in enumerate(points[0].samples)
    )
    return Samples("evidence_samples", items, "Held-out prompts, which train nothing.")


def _named(step: int, evidence: Evidence) -> str:
    name = f"step {step:,}" if step else "start model"
    return f"{name}, published" if step == evidence.published_step else name


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
    if info.num_evaluated is not None:
        best += f", on a fixed draw of {info.num_evaluated:,} validation examples"
    share = percent(info.trainable_parameters / info.total_parameters)
    return (
        ("Algorithm", info.algorithm),
        ("Optimizer steps", f"{steps}{resumed}"),
        ("Global batch size", info.global_batch_size),
        ("Examples", info.num_examples),
        ("Left out as too long", info.examples_left_out),
        ("Left out for a token without a row", info.examples_without_row or ""),
        ("Parameters trained", f"{info.trainable_parameters:,} of {info.total_parameters:,} ({share})"),
        ("Published", _published_step(info)),
        ("Best checkpoint", best if info.best_metric is not None else ""),
        ("Training time", duration(info.duration_s)),
        ("Peak memory", size(info.peak_memory_bytes) if info.peak_memory_bytes else ""),
        ("Device", " · ".join(part for part in (info.device, info.precision) if part)),
    )


def _published_step(info: TrainingInfo) -> str:
    if info.published_step is None:
        return ""
    return f"step {info.published_step:,}" if info.published_step else "the start model, unchanged"
