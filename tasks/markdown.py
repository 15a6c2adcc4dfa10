"""Tables and summaries for the pages of Prefect, from the contract's records. Every cell is escaped."""

from collections.abc import Sequence
from pathlib import Path

from containers.contracts.outcome import Metric, StageFailure
from containers.contracts.records import (
    CheckFinding,
    Funnel,
    GateVerdict,
    Message,
    PairFileEvaluation,
    PolicyEvaluation,
    RewardModelEvaluation,
    StageRecord,
    TrainingInfo,
)
from containers.human_text import (
    MISSING,
    duration,
    humanize,
    interval,
    markdown_table,
    markdown_text,
    metric_text,
    number,
    percent,
    quantity,
    short_digest,
    size,
)
from tasks.plots import bar_plot

_MAX_SAMPLES = 4
_MAX_GROUPS = 12
_CHECK_MARKS = {"ok": "✔ ok", "warning": "⚠ warning", "failure": "✘ failure"}
_STATUS_MARKS = {"ran": "✔ ran", "reused": "↺ reused", "failed": "✘ failed", "skipped": "– skipped"}


def system_check_markdown(findings: Sequence[CheckFinding]) -> str:
    """What was found, what is wanted, what to do; failures first."""
    order = {"failure": 0, "warning": 1, "ok": 2}
    ranked = sorted(findings, key=lambda finding: order[finding.verdict])
    failures = sum(finding.verdict == "failure" for finding in findings)
    warnings = sum(finding.verdict == "warning" for finding in findings)
    summary = f"{_count(failures, 'failure')}, {_count(warnings, 'warning')} in {_count(len(findings), 'check')}."
    table = markdown_table(
        ("Check", "Verdict", "Found", "Wanted", "What to do"),
        [(item.name, _CHECK_MARKS[item.verdict], item.found, item.wanted, item.advice) for item in ranked],
    )
    return _join("## System check", summary, table)


def failure_markdown(failure: StageFailure, *, log: Path) -> str:
    """Why a stage failed, what to do, and its last words."""
    # A fence inside the evidence must not end ours.
    evidence = "\n".join(line.replace("```", "\u02cb\u02cb\u02cb") for line in failure.evidence) or "none"
    return _join(
        f"## {failure.stage} failed: {failure.kind.value}",
        markdown_text(failure.message),
        f"```text\n{evidence}\n```",
        f"Full log: {markdown_text(str(log))}",
    )


def funnel_markdown(funnel: Funnel) -> str:
    """Rows in and out of every filter, then what the surviving pairs are used for."""
    steps = [
        (humanize(step.reason), step.rows_in, step.dropped, step.rows_out) for step in funnel.steps if step.dropped
    ]
    table = markdown_table(
        ("Filter", "Rows in", "Dropped", "Rows out"),
        [(name, *(f"{count:,}" for count in counts)) for name, *counts in steps],
        right=(1, 2, 3),
    )
    idle = [humanize(step.reason).lower() for step in funnel.steps if not step.dropped]
    nothing = f"Dropped nothing: {markdown_text(', '.join(idle), limit=600)}." if idle else ""
    plot = bar_plot("Rows dropped, by filter", [(name, dropped) for name, _, dropped, _ in steps])
    uses = markdown_table(
        ("Used for", "Number", "Unit"),
        [
            ("Reward model, training", f"{funnel.train_pairs:,}", "pairs"),
            ("Reward model, validation", f"{funnel.validation_pairs:,}", "pairs"),
            ("Set aside for the policy", f"{funnel.pairs_set_aside_for_policy:,}", "pairs"),
            ("Policy, training", f"{funnel.policy_train_prompts:,}", "prompts"),
            ("Policy, evaluation", f"{funnel.policy_eval_prompts:,}", "prompts"),
        ],
        right=(1,),
    )
    domains = markdown_table(
        ("Domain", "Pairs kept"),
        [(name, f"{count:,}") for name, count in funnel.kept_by_domain[:_MAX_GROUPS]],
        right=(1,),
    )
    left = funnel.steps[-1].rows_out if funnel.steps else funnel.rows_read
    summary = (
        f"{funnel.rows_read:,} rows read from {markdown_text(', '.join(funnel.sources)) or MISSING}; "
        f"{funnel.rows_read - left:,} dropped, {left:,} kept."
    )
    return _join("## What became of every row", summary, uses, plot, table, nothing, domains)


def training_markdown(info: TrainingInfo, metrics: Sequence[Metric], *, plots: str = "") -> str:
    """How a model was trained: its curves, and the figures that the stage returned.

    Args:
        plots: Markdown of `tasks.curves`.
    """
    done = f"{info.num_steps:,} of {info.planned_steps:,}"
    best = f"{info.best_metric_name} {number(info.best_metric)} at step {number(info.best_step)}"
    rows = [
        ("Algorithm", info.algorithm),
        ("Steps", done if info.resumed_from_step is None else f"{done}, resumed from step {info.resumed_from_step:,}"),
        ("Global batch", f"{info.global_batch_size:,}"),
        ("Examples", f"{info.num_examples:,}; {info.examples_left_out:,} left out as too long"),
        ("Trained parameters", f"{info.trainable_parameters:,} ({_share(info)} of {info.total_parameters:,})"),
        ("Best", best if info.best_metric is not None else MISSING),
        ("Duration", duration(info.duration_s)),
        ("Peak memory", size(info.peak_memory_bytes)),
        ("Device, precision", " ".join(part for part in (info.device, info.precision) if part) or MISSING),
    ]
    return _join(f"## {humanize(info.stage)}", _metrics_table(metrics), plots, markdown_table(("", "Value"), rows))


def reward_model_markdown(evaluation: RewardModelEvaluation, verdict: GateVerdict | None = None) -> str:
    """Verdict, accuracy by file with interval, and some pairs with both scores."""
    files = markdown_table(
        ("File", "Accuracy", "Interval", "Minimum", "Pairs", "Ties", "Mean margin"),
        [_pair_file_row(file) for file in evaluation.files],
        right=(1, 2, 3, 4, 5, 6),
    )
    samples = [
        _sample(
            sample.prompt,
            "✔ right" if sample.score_chosen > sample.score_rejected else "✘ wrong",
            ("chosen", sample.score_chosen, sample.chosen),
            ("rejected", sample.score_rejected, sample.rejected),
        )
        for sample in evaluation.samples[:_MAX_SAMPLES]
    ]
    domains = [
        (f"{humanize(metric.name)} ({file.name})", metric_text(metric))
        for file in evaluation.files
        for metric in file.by_domain[:_MAX_GROUPS]
    ]
    by_domain = markdown_table(("Domain", "Accuracy"), domains if len(domains) > 1 else [])
    reload = (
        f"Scores: mean {number(evaluation.score_mean)}, standard deviation {number(evaluation.score_std)}; reloaded "
        f"from disk they differ by at most {number(evaluation.reload_max_difference)}."
    )
    return _join(
        "## Reward model",
        gate_markdown(verdict) if verdict else "",
        files,
        by_domain,
        reload,
        *_titled("Samples", samples),
    )


def policy_markdown(evaluation: PolicyEvaluation, verdict: GateVerdict | None = None) -> str:
    """Verdict, policy beside reference, and the caveat that the judge is the reward model itself."""
    pairs = (
        ("Reward", evaluation.reward_policy, evaluation.reward_reference),
        ("Completion length", evaluation.length_policy, evaluation.length_reference),
        ("Ended by themselves", evaluation.ended_policy, evaluation.ended_reference),
    )
    table = markdown_table(
        ("", "Policy", "Reference"),
        [(name, metric_text(policy), metric_text(reference)) for name, policy, reference in pairs],
    )
    differences = (evaluation.reward_difference, evaluation.win_rate, evaluation.kl, evaluation.identical_completions)
    figures = _metrics_table([metric for metric in differences if metric is not None])
    caveat = (
        f"On {evaluation.num_prompts:,} held-out prompts. The judge is the reward model that the policy was trained "
        "against: a gain shows that training worked, not that people prefer the answers."
    )
    samples = [
        _sample(
            sample.prompt,
            "a tie" if sample.winner == "tie" else f"the {sample.winner} wins",
            ("policy", sample.reward_policy, sample.policy),
            ("reference", sample.reward_reference, sample.reference),
        )
        for sample in evaluation.samples[:_MAX_SAMPLES]
    ]
    gate = gate_markdown(verdict) if verdict else ""
    return _join("## Policy against reference", gate, figures, table, caveat, *_titled("Samples", samples))


def stage_markdown(record: StageRecord) -> str:
    """What happened to one stage."""
    rows = [
        ("Status", _STATUS_MARKS[record.status]),
        ("Why", record.message),
        ("Duration", duration(record.duration_s) if record.status in ("ran", "failed") else ""),
        ("Attempts", f"{record.attempts}" if record.attempts else ""),
        ("Runtime", record.runtime),
        ("Image", short_digest(record.image_digest)),
        ("Artifact", record.path),
        ("Digest", short_digest(record.digest)),
        ("MLflow run", record.mlflow_run_id),
    ]
    table = markdown_table(("", "Value"), [(name, value) for name, value in rows if value])
    return _join(f"## {humanize(record.stage)}", table, _metrics_table(record.metrics))


def gate_markdown(verdict: GateVerdict) -> str:
    """The decision in one sentence, then every demand with the figure that was found."""
    name = humanize(verdict.name).lower()
    if verdict.passed:
        sentence = f"✔ The {name} passed its gate."
    elif verdict.opens:
        sentence = (
            f"⚠ The {name} did not pass its gate. Waived by {markdown_text(verdict.waived_by) or 'nobody named'} "
            f"because: {markdown_text(verdict.waiver_reason)}"
        )
    else:
        sentence = f"✘ The {name} did not pass its gate."
    table = markdown_table(
        ("Rule", "Wanted", "Found", "Verdict"),
        [(rule.name, rule.wanted, rule.found, "✔ passed" if rule.passed else "✘ missed") for rule in verdict.rules],
    )
    return _join(sentence, table, markdown_text(verdict.advice, limit=600))


def _pair_file_row(file: PairFileEvaluation) -> tuple[str, ...]:
    minimum = percent(file.minimum_accuracy)
    accuracy = quantity(file.accuracy.value, file.accuracy.unit) if file.accuracy else "no pair was left"
    margin = number(file.mean_margin.value) if file.mean_margin else MISSING
    return file.name, accuracy, interval(file.accuracy), minimum, f"{file.num_pairs:,}", f"{file.num_ties:,}", margin


def _metrics_table(metrics: Sequence[Metric]) -> str:
    return markdown_table(
        ("Figure", "Value", "Interval", "n", "Origin"),
        [
            (
                humanize(metric.name),
                quantity(metric.value, metric.unit),
                interval(metric) or MISSING,
                f"{metric.count:,}" if metric.count is not None else MISSING,
                metric.origin,
            )
            for metric in metrics
        ],
        right=(1, 2, 3),
    )


def _sample(prompt: Sequence[Message], verdict: str, *answers: tuple[str, float, str]) -> str:
    """A prompt and its answers, each with its name and score, as text that wraps."""
    asked = markdown_text(prompt[-1].content) if prompt else MISSING
    lines = [f"- **{name}, {number(score)}:** {markdown_text(text)}" for name, score, text in answers]
    return "\n".join((f"{asked} ({verdict})", "", *lines))


def _titled(title: str, parts: Sequence[str]) -> tuple[str, ...]:
    return (f"### {title}", *parts) if parts else ()


def _share(info: TrainingInfo) -> str:
    return percent(info.trainable_parameters / info.total_parameters)


def _count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}" + ("" if amount == 1 else "s")


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
