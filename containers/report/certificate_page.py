"""The certificate as one self-contained page, in the style of the report."""

from dataclasses import dataclass

from containers.contracts.certificate import VALIDATION, Certificate, LengthBias, SuiteEvaluation
from containers.contracts.outcome import Metric
from containers.contracts.records import GateVerdict
from containers.formatting import interval, number, one_line, percent, short_digest
from containers.report.figures import score_distribution_plot
from containers.report.gates import Statement, gate_outcome, sentence
from containers.report.glossary import GLOSSARY
from containers.report.page import page_environment
from containers.report.plot import Plot
from containers.report.plots import suite_plots, suite_scores_plot
from containers.report.verdict import Card

_NAVIGATION = (
    ("rules", "Gate"),
    ("suites", "Suites"),
    ("length", "Length bias"),
    ("scores", "Scores and calibration"),
    ("parity", "Score parity"),
    ("parts", "Suite by suite"),
    ("model", "Which model"),
    ("samples", "Samples"),
    ("glossary", "Glossary"),
)
_WORDS = (
    "suite",
    "pair",
    "accuracy",
    "score",
    "margin",
    "log loss",
    "calibration",
    "calibration error",
    "interval",
    "length slope",
    "accuracy at equal lengths",
    "padding attack",
    "score parity",
    "gate",
    "digest",
)
# Suites whose plots are shown; the figures of all are in the tables.
_MAX_PLOTTED = 6
_TEXT_LIMIT = 900
_MAX_TURNS = 6


@dataclass(frozen=True)
class _Plots:
    """The plots of each section."""

    scores: tuple[Plot, ...]
    length: tuple[Plot, ...]
    calibration: tuple[Plot, ...]


def certificate_html(certificate: Certificate, verdict: GateVerdict | None = None) -> str:
    """Return the whole page as one document: no script, no request, nothing from outside.

    Args:
        verdict: of one run's gate; None: the page shows only figures, which any gate may judge.
    """
    environment = page_environment()
    environment.filters.update(short_digest=short_digest, bare_interval=_bare_interval)
    shown = {"rules": verdict is not None, "samples": bool(certificate.samples)}
    html = environment.get_template("certificate.html.jinja").render(
        certificate=certificate,
        banner=_banner(certificate, verdict),
        cards=_cards(certificate),
        rules=verdict.rules if verdict else (),
        lengths=_lengths(certificate),
        plots=_plots(certificate),
        suite_facts=_suite_facts,
        model_facts=_model_facts(certificate),
        navigation=[item for item in _NAVIGATION if shown.get(item[0], True)],
        glossary=GLOSSARY,
        words={word: GLOSSARY[word] for word in _WORDS},
        text_limit=_TEXT_LIMIT,
        max_turns=_MAX_TURNS,
    )
    return html.strip() + "\n"


def _banner(certificate: Certificate, verdict: GateVerdict | None) -> Statement:
    suites = f"{len(certificate.suites)} suite" + ("" if len(certificate.suites) == 1 else "s")
    pairs = sum(suite.num_pairs for suite in certificate.suites)
    measured = f"Judged by {suites} with {pairs:,} pairs; every code path gives the same scores."
    if verdict is not None:
        words, tone = gate_outcome(verdict)
        return Statement(tone, f"The gate: {words}.", f"{_last_word(verdict)} {measured}".lstrip())
    missed = [suite.name for suite in certificate.suites if _misses(suite)]
    if missed:
        return Statement("bad", f"Below its minimum on {one_line(', '.join(missed), 200)}.", measured)
    return Statement(
        "plain", "Measured; no gate has judged it on this page.", f"{measured} The report of a run holds its verdict."
    )


def _last_word(verdict: GateVerdict) -> str:
    """Return who waived or decided, and why; empty if the rules alone decided."""
    decision = verdict.decision
    if decision is not None and decision.by:
        return f"{one_line(decision.by, 80)} said: {sentence(one_line(decision.reason, 300))}"
    if verdict.waived_by:
        return f"Waived by {one_line(verdict.waived_by, 80)} because: {sentence(one_line(verdict.waiver_reason, 300))}"
    return ""


def _misses(suite: SuiteEvaluation) -> bool:
    if suite.minimum_accuracy is None:
        return False
    return suite.score is None or suite.score.value < suite.minimum_accuracy


def _cards(certificate: Certificate) -> tuple[Card, ...]:
    validation = next((suite.accuracy for suite in certificate.suites if suite.name == VALIDATION), None)
    length, parity = certificate.length, certificate.parity
    judged = [suite for suite in certificate.suites if suite.score]
    return (
        _card("Accuracy on held-out pairs", "accuracy", validation),
        Card(
            "Suites",
            "suite",
            value=f"{len(judged)}",
            interval=f"{sum(suite.num_pairs for suite in judged):,} pairs",
            detail=f"{sum(suite.num_left_out for suite in certificate.suites):,} rows or prompts left out",
        ),
        _card("Accuracy at equal lengths", "accuracy at equal lengths", length.controlled_accuracy),
        _card("Length slope", "length slope", length.standard_slope),
        _card("Order flipped by padding", "padding attack", length.padding.flips),
        Card(
            "Score parity",
            "score parity",
            value=number(parity.max_difference),
            interval=f"at most {number(parity.bound)} is rounding",
            detail=f"{len(parity.paths)} code paths, {parity.num_conversations} conversations",
        ),
    )


def _card(label: str, term: str, metric: Metric | None) -> Card:
    if metric is None:
        return Card(label, term, detail="could not be measured")
    count = f"n = {metric.count:,} pairs" if metric.count is not None else ""
    if metric.unit == "fraction":
        return Card(label, term, value=percent(metric.value), interval=interval(metric), detail=count)
    # The unit is too long for large letters.
    spread = f"{_bare_interval(metric)} {metric.unit}"
    return Card(label, term, value=number(metric.value, signed=True), interval=spread, detail=count)


def _lengths(certificate: Certificate) -> tuple[tuple[str, LengthBias], ...]:
    each = tuple((suite.name, suite.length) for suite in certificate.suites if suite.num_pairs)
    return (("All suites together", certificate.length), *each) if len(each) > 1 else each


def _plots(certificate: Certificate) -> _Plots:
    suites = [suite for suite in certificate.suites if suite.num_pairs][:_MAX_PLOTTED]
    by_name = {suite.name: suite_plots(suite) for suite in suites}
    length = [plot for plots in by_name.values() for plot in plots if "length difference" in plot.title]
    calibration = [
        plot
        for suite in suites
        for plot in (
            score_distribution_plot(suite, salt=f"{suite.name} scores"),
            *(found for found in by_name[suite.name] if found.title.endswith(": calibration")),
        )
        if plot is not None
    ]
    scores = suite_scores_plot(certificate.suites) if len(certificate.suites) > 1 else None
    first = [plot for plot in by_name.get(VALIDATION, ()) if plot.title.endswith(("by subset", "of preference"))]
    return _Plots(
        scores=tuple(plot for plot in (scores, *first) if plot is not None),
        length=tuple(length),
        calibration=tuple(calibration),
    )


def _suite_facts(suite: SuiteEvaluation) -> tuple[tuple[str, str], ...]:
    reasons = ", ".join(f"{reason.replace('_', ' ')}: {count:,}" for reason, count in suite.left_out_because)
    rows = (
        ("Benchmark", suite.title),
        ("Data", " ".join(part for part in (suite.origin, short_digest(suite.digest)) if part)),
        ("Rule", suite.source),
        ("Ties", suite.tie_rule),
        ("Rows read", f"{suite.rows_read:,}"),
        ("Rows used", _rows_used(suite)),
        ("Over-long", f"{suite.num_over_long:,}" if suite.num_over_long else ""),
        ("Left out", reasons),
        ("Wanted", f"at least {percent(suite.minimum_accuracy)}" if suite.minimum_accuracy is not None else ""),
    )
    return tuple((label, value) for label, value in rows if value)


def _rows_used(suite: SuiteEvaluation) -> str:
    """Return the number of rows used, with a note if several rows have the same prompt."""
    if not 0 < suite.num_prompts < suite.num_items:
        return f"{suite.num_items:,}"
    return f"{suite.num_items:,}, with {suite.num_prompts:,} prompts; the intervals are over prompts"


def _model_facts(certificate: Certificate) -> tuple[tuple[str, str], ...]:
    model = certificate.model
    rows = (
        ("Model", model.origin),
        ("Digest", model.digest),
        ("Score head", f"sha256:{model.score_head_sha256}"),
        ("Architecture", model.architecture),
        ("Parameters", f"{model.num_parameters:,}" if model.num_parameters else ""),
        ("Trained by", model.algorithm),
        ("Training pairs", f"{model.num_training_examples:,}" if model.num_training_examples else ""),
        ("Scored in", model.precision),
        ("Longest conversation", f"{model.max_length:,} tokens" if model.max_length else ""),
    )
    return tuple((label, value) for label, value in rows if value)


def _bare_interval(metric: Metric) -> str:
    """The interval without the unit, for a table whose heading names it."""
    if metric.unit == "fraction" or metric.ci_low is None or metric.ci_high is None:
        return interval(metric)
    return f"{number(metric.ci_low, signed=True)} to {number(metric.ci_high, signed=True)}"
