"""The certificate of a reward model: a page of its own, and its sections for the pages of a run."""

from collections.abc import Iterable

from containers.contracts.certificate import (
    PADDING,
    REPETITION,
    REWRITING,
    TEST_SUITE,
    Certificate,
    SuiteEvaluation,
)
from containers.contracts.outcome import Metric
from containers.contracts.records import GateVerdict
from containers.document.model import (
    Banner,
    Block,
    Card,
    Definitions,
    Facts,
    Fold,
    Note,
    Page,
    Plot,
    Plots,
    Section,
)
from containers.formatting import (
    interval,
    number,
    one_line,
    parity_text,
    percent,
    sample_size,
    short_digest,
)
from containers.report.gates import gate_outcome, gate_section, sentence
from containers.report.length import length_section
from containers.report.parity import parity_card, parity_section
from containers.report.policy.samples import scored_samples
from containers.report.suites import (
    bare_interval,
    choice_note,
    part_blocks,
    suites_table,
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
    "plug-in calibration error",
    "interval",
    "length effect",
    "padding attack",
    "length slope",
    "accuracy at equal lengths",
    "score parity",
    "gate",
    "digest",
)
# Suites whose plots the page shows; the figures of all are in the tables.
_MAX_PLOTTED = 6
_MAX_OPEN = 3
# The same as `tasks.config.gate_rules.Bound` with `interval`, the default; a test compares the two.
_HELD = (
    "A minimum is kept if the lower end of the interval reaches it. A run's gate holds it so too, unless "
    "gates.reward_model.held_by is figure."
)
_FOOTER = (
    "Written by rlhf-flows. The same figures, and more digits, are in certificate.json; the scores of every pair are "
    "beside it. The page needs no network and runs no script."
)


def certificate_page(certificate: Certificate, verdict: GateVerdict | None = None) -> Page:
    """Return the page.

    Args:
        verdict: of one run's gate; None: the page shows only figures, which any gate may judge.
    """
    model = certificate.model
    return Page(
        "Certificate of a reward model",
        facts=(
            ("Model", model.origin),
            ("Digest", short_digest(model.digest)),
            ("Score head", f"sha256:{model.score_head_sha256[:12]}"),
        ),
        banner=_banner(certificate, verdict),
        cards=_cards(certificate),
        sections=(
            *certificate_sections(certificate, verdict),
            Section("Glossary", (Definitions(_WORDS),), anchor="glossary", short="Glossary"),
        ),
        footer=_FOOTER,
    )


def certificate_sections(
    certificate: Certificate, verdict: GateVerdict | None = None, *, num_plotted: int = _MAX_PLOTTED
) -> tuple[Section, ...]:
    """Return everything that was measured of the model, each subject in a section.

    Args:
        num_plotted: suites with plots.
    """
    from containers.report.plots import suite_plots, suite_scores_plot

    suites = [suite for suite in certificate.suites if suite.num_pairs][:num_plotted]
    plots = {suite.name: suite_plots(suite, with_scores=True) for suite in suites}
    drawn = [plot for found in plots.values() for plot in found]
    by_suite = suite_scores_plot(certificate.suites)
    first = _titled(plots.get(TEST_SUITE, ()), "by subset", "of preference")
    gate = (_with_anchor(gate_section(verdict), "rules", "Gate"),) if verdict else ()
    samples = (
        Section("Sample predictions", (scored_samples(certificate.samples),), anchor="samples", short="Samples"),
    )
    return (
        *gate,
        _suites(certificate, (*((by_suite,) if by_suite else ()), *first), is_judged=verdict is not None),
        length_section(certificate, _titled(drawn, "length difference")),
        _scores(certificate, _titled(drawn, ": scores", ": calibration")),
        parity_section(certificate.parity),
        Section("Suite by suite", tuple(_parts(certificate.suites)), anchor="parts", short="Suite by suite"),
        Section("Which model", (_model_facts(certificate),), anchor="model", short="Which model"),
        *(samples if certificate.samples else ()),
    )


def _titled(plots: Iterable[Plot], *endings: str) -> tuple[Plot, ...]:
    return tuple(plot for plot in plots if plot.title.endswith(endings))


def _with_anchor(section: Section, anchor: str, short: str) -> Section:
    return Section(section.title, section.blocks, section.outcome, anchor, short)


def _banner(certificate: Certificate, verdict: GateVerdict | None) -> Banner:
    suites = f"{len(certificate.suites)} suite" + ("" if len(certificate.suites) == 1 else "s")
    pairs, prompts = (
        sum(getattr(suite, name) for suite in certificate.suites) for name in ("num_pairs", "num_prompts")
    )
    equal = parity_text(certificate.parity)
    measured = f"Judged by {suites} with {pairs:,} pairs of {prompts:,} prompts; code paths equal within {equal}."
    if verdict is not None:
        outcome, tone = gate_outcome(verdict)
        return Banner(tone, f"The gate: {outcome}.", (f"{_last_word(verdict)} {measured}".lstrip(),))
    missed = [suite.name for suite in certificate.suites if _misses(suite)]
    if missed:
        return Banner("bad", f"Below its minimum on {one_line(', '.join(missed), 200)}.", (f"{_HELD} {measured}",))
    note = f"{measured} The report of a run holds its verdict."
    return Banner("plain", "Measured; no gate has judged it on this page.", (note,))


def _last_word(verdict: GateVerdict) -> str:
    """Return who waived or decided, and why; empty if the rules alone decided."""
    decision = verdict.decision
    if decision is not None and decision.by:
        return f"{one_line(decision.by, 80)} said: {sentence(one_line(decision.reason, 300))}"
    if verdict.waived_by:
        return f"Waived by {one_line(verdict.waived_by, 80)} because: {sentence(one_line(verdict.waiver_reason, 300))}"
    return ""


def _misses(suite: SuiteEvaluation) -> bool:
    """Whether the lower end of the interval is below the suite's own minimum: the default rule of a run's gate."""
    if suite.minimum_accuracy is None:
        return False
    score = suite.score
    return score is None or (score.value if score.ci_low is None else score.ci_low) < suite.minimum_accuracy


def _cards(certificate: Certificate) -> tuple[Card, ...]:
    test = next((suite.accuracy for suite in certificate.suites if suite.name == TEST_SUITE), None)
    length, parity = certificate.length, certificate.parity
    judged = [suite for suite in certificate.suites if suite.score]
    return (
        _card("Accuracy on test pairs", "accuracy", test),
        Card(
            "Suites",
            "suite",
            value=f"{len(judged)}",
            interval=f"{sum(suite.num_pairs for suite in judged):,} pairs",
            detail=f"{sum(suite.num_left_out for suite in certificate.suites):,} rows or prompts left out",
        ),
        *(
            _card(f"Effect of {name}", "length effect", length.intervention(name).effect, unit="answers")
            for name in (PADDING, REPETITION, REWRITING)
        ),
        _card("Order flipped by padding", "padding attack", length.padding.flips),
        parity_card(parity),
    )


def _card(label: str, term: str, metric: Metric | None, *, unit: str = "pairs") -> Card:
    if metric is None:
        return Card(label, term, detail="could not be measured")
    count = f"n = {sample_size(metric, unit)}" if metric.count is not None else ""
    if metric.unit == "fraction":
        return Card(label, term, value=percent(metric.value), interval=interval(metric), detail=count)
    # The full unit is too long for large letters.
    spread = f"{bare_interval(metric)} {metric.unit}"
    return Card(label, term, value=number(metric.value, signed=True), interval=spread, detail=count)


def _suites(certificate: Certificate, plots: tuple[Plot, ...], *, is_judged: bool) -> Section:
    lead = (
        "Each suite scores by its own published rule. Pair accuracy, margin, log loss and calibration are over all "
        "comparisons of a better with a worse answer, each with the weight that the score gives its item; a tie is "
        f"half right. Intervals are at {percent(certificate.confidence)} and over prompts: rows with "
        "the same prompt are no independent evidence."
    )
    # A run's verdict says itself what its gate holds.
    has_minimum = not is_judged and any(suite.minimum_accuracy is not None for suite in certificate.suites)
    blocks = (
        Note(lead, "lead", ("suite",)),
        suites_table(certificate.suites),
        *((Note(_HELD, "quiet"),) if has_minimum else ()),
        *choice_note(certificate),
        Plots(plots),
    )
    return Section("Suites", blocks, anchor="suites", short="Suites")


def _scores(certificate: Certificate, plots: tuple[Plot, ...]) -> Section:
    lead = (
        f"Over all suites the scores have mean {number(certificate.score_mean)} and standard deviation "
        f"{number(certificate.score_std)}. A difference of scores is a probability by the Bradley-Terry model: "
        "calibration says whether that probability is right. A point off the dashed line tells something only if its "
        "interval misses the line too: few pairs scatter around it also where the model is right."
    )
    shown, others = plots[:4], plots[4:]
    more = (Fold("The same for other suites", (Plots(others),)),) if others else ()
    blocks = (Note(lead, "lead", ("calibration",)), Plots(shown), *more)
    return Section("Scores and calibration", blocks, anchor="scores", short="Scores and calibration")


def _parts(suites: Iterable[SuiteEvaluation]) -> Iterable[Block]:
    for index, suite in enumerate(suites):
        score = f": {percent(suite.score.value)}" if suite.score else ""
        yield Fold(f"{suite.name}{score}", part_blocks(suite), is_open=index < _MAX_OPEN)


def _model_facts(certificate: Certificate) -> Facts:
    model = certificate.model
    return Facts(
        (
            ("Model", model.origin),
            ("Digest", model.digest),
            ("Score head", f"sha256:{model.score_head_sha256}"),
            ("Architecture", model.architecture),
            ("Parameters", model.num_parameters or ""),
            ("Trained by", model.algorithm),
            ("Training pairs", model.num_training_examples or ""),
            ("Scored in", model.precision),
            ("Longest conversation", f"{model.max_length:,} tokens" if model.max_length else ""),
        )
    )
