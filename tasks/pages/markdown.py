"""Tables and summaries for the pages of Prefect, from the contract's records. Every cell is escaped."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from containers.contracts.certificate import Certificate, LengthBias, SuiteEvaluation
from containers.contracts.outcome import Metric, StageFailure
from containers.contracts.records import (
    CheckFinding,
    GateVerdict,
    Message,
    PolicyEvaluation,
    StageRecord,
    TrainingInfo,
)
from containers.formatting import (
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

T = TypeVar("T")

_MAX_SAMPLES = 4
_MAX_GROUPS = 12
_POLICY_SAMPLES = "Samples, from the largest loss of reward to the largest gain"
_CHECK_MARKS = {"ok": "✔ ok", "warning": "⚠ warning", "failure": "✘ failure"}
_STATUS_MARKS = {"ran": "✔ ran", "reused": "↺ reused", "failed": "✘ failed", "skipped": "– skipped"}


def system_check_markdown(findings: Sequence[CheckFinding]) -> str:
    """Return each check with what was found, what is wanted and what to do; failures first."""
    order = {"failure": 0, "warning": 1, "ok": 2}
    ranked = sorted(findings, key=lambda finding: order[finding.verdict])
    failures = sum(finding.verdict == "failure" for finding in findings)
    warnings = sum(finding.verdict == "warning" for finding in findings)
    summary = f"{_count(failures, 'failure')}, {_count(warnings, 'warning')} in {_count(len(findings), 'check')}."
    table = markdown_table(
        ("Check", "Verdict", "Found", "Wanted", "What to do"),
        [(item.name, _CHECK_MARKS[item.verdict], item.found, item.wanted, item.advice) for item in ranked],
    )
    return joined("## System check", summary, table)


def failure_markdown(failure: StageFailure, *, log: Path) -> str:
    """Return why a stage failed, what to do, and the evidence from its log."""
    # A fence inside the evidence must not end ours.
    evidence = "\n".join(line.replace("```", "\u02cb\u02cb\u02cb") for line in failure.evidence) or "none"
    return joined(
        f"## {failure.stage} failed: {failure.kind.value}",
        markdown_text(failure.message),
        f"```text\n{evidence}\n```",
        f"Full log: {markdown_text(str(log))}",
    )


def training_markdown(info: TrainingInfo, metrics: Sequence[Metric], *, plots: str = "") -> str:
    """Return the curves of a training, and the figures that the stage returned.

    Args:
        plots: Markdown of `tasks.pages.plots`.
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
    return joined(f"## {humanize(info.stage)}", _metrics_table(metrics), plots, markdown_table(("", "Value"), rows))


def reward_model_markdown(certificate: Certificate, verdict: GateVerdict | None = None, *, page: str = "") -> str:
    """Return verdict, figures of each suite, length bias, parity, and some pairs with both scores.

    Args:
        page: address of the certificate's page; empty: it has none.
    """
    suites = markdown_table(
        ("Suite", "Score", "Interval", "Minimum", "Pairs", "Pair accuracy", "Ties", "Left out", "Mean margin"),
        [_suite_row(suite) for suite in certificate.suites],
        right=tuple(range(1, 9)),
    )
    samples = [
        _sample(
            sample.prompt,
            "✔ right" if sample.score_chosen > sample.score_rejected else "✘ wrong",
            ("chosen", sample.score_chosen, sample.chosen),
            ("rejected", sample.score_rejected, sample.rejected),
        )
        for sample in _spread(certificate.samples)
    ]
    subsets = [
        (f"{humanize(metric.name)} ({suite.name})", metric_text(metric))
        for suite in certificate.suites
        for metric in (*suite.sections, *suite.subsets)[:_MAX_GROUPS]
    ]
    parity = (
        f"Scores: mean {number(certificate.score_mean)}, standard deviation {number(certificate.score_std)}; the same "
        f"{certificate.parity.num_conversations} conversations, scored on {len(certificate.parity.paths)} code paths, "
        f"differ by at most {number(certificate.parity.max_difference)} (allowed: {number(certificate.parity.bound)})."
    )
    return joined(
        "## Certificate of the reward model",
        f"[The certificate as a page]({page})" if page else "",
        gate_markdown(verdict) if verdict else "",
        suites,
        markdown_table(("Part", "Figure"), subsets if len(subsets) > 1 else []),
        _length_table(certificate.length),
        parity,
        *_titled("Samples, from the most wrongly to the most rightly ordered pair", samples),
    )


def policy_markdown(evaluation: PolicyEvaluation, verdict: GateVerdict | None = None) -> str:
    """Return verdict, policy beside reference, and the caveat that the reward model is the judge."""
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
        for sample in _spread(evaluation.samples)
    ]
    gate = gate_markdown(verdict) if verdict else ""
    return joined("## Policy against reference", gate, figures, table, caveat, *_titled(_POLICY_SAMPLES, samples))


def stage_markdown(record: StageRecord) -> str:
    """Return the record of one stage as a table."""
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
    return joined(f"## {humanize(record.stage)}", table, _metrics_table(record.metrics))


def gate_markdown(verdict: GateVerdict) -> str:
    """Return the decision in one sentence, then every rule with the figure that was found."""
    name = humanize(verdict.name).lower()
    if verdict.passed:
        sentence = f"✔ The {name} passed its gate."
    elif verdict.opens:
        sentence = (
            f"⚠ The {name} did not pass its gate. Waived by {markdown_text(verdict.waived_by) or 'an unnamed person'} "
            f"because: {markdown_text(verdict.waiver_reason)}"
        )
    else:
        sentence = f"✘ The {name} did not pass its gate."
    table = markdown_table(
        ("Rule", "Wanted", "Found", "Verdict"),
        [(rule.name, rule.wanted, rule.found, "✔ passed" if rule.passed else "✘ missed") for rule in verdict.rules],
    )
    return joined(sentence, table, markdown_text(verdict.advice, limit=600))


def _suite_row(suite: SuiteEvaluation) -> tuple[str, ...]:
    score = quantity(suite.score.value, suite.score.unit) if suite.score else "nothing was left"
    accuracy = quantity(suite.accuracy.value, suite.accuracy.unit) if suite.accuracy else MISSING
    return (
        suite.name,
        score,
        interval(suite.score),
        percent(suite.minimum_accuracy),
        f"{suite.num_pairs:,}",
        accuracy,
        f"{suite.num_ties:,}",
        f"{suite.num_left_out:,}",
        number(suite.mean_margin.value) if suite.mean_margin else MISSING,
    )


def _length_table(length: LengthBias) -> str:
    rows = (
        ("Score per doubling of the length", length.slope),
        ("The same in standard deviations", length.standard_slope),
        ("Accuracy at equal lengths", length.controlled_accuracy),
        ("Order flipped by padding the rejected side", length.padding.flips),
    )
    table = [(name, metric_text(found)) for name, found in rows]
    return markdown_table(("Length bias, over all suites", "Figure"), table)


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
    """Return a prompt and its answers, each with its name and score, as text that wraps."""
    asked = markdown_text(prompt[-1].content) if prompt else MISSING
    lines = [f"- **{name}, {number(score)}:** {markdown_text(text)}" for name, score, text in answers]
    return "\n".join((f"{asked} ({verdict})", "", *lines))


def _spread(samples: Sequence[T]) -> list[T]:
    """Return a few samples, evenly from the first to the last: they are sorted."""
    last, gaps = len(samples) - 1, min(_MAX_SAMPLES, len(samples)) - 1
    return [samples[round(index * last / gaps)] for index in range(gaps + 1)] if gaps > 0 else list(samples)


def _titled(title: str, parts: Sequence[str]) -> tuple[str, ...]:
    return (f"### {title}", *parts) if parts else ()


def _share(info: TrainingInfo) -> str:
    return percent(info.trainable_parameters / info.total_parameters)


def _count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}" + ("" if amount == 1 else "s")


def joined(*parts: str) -> str:
    """Join paragraphs, without the empty ones."""
    return "\n\n".join(part for part in parts if part) + "\n"
