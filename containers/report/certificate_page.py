"""The certificate of a reward model: a page of its own, and its sections for the pages of a run."""

from collections.abc import Iterable

from containers.contracts.certificate import (
    PADDING,
    REPETITION,
    REWRITING,
    TEST_SUITE,
    Certificate,
    LengthBias,
    ScoreParity,
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
    Table,
    Text,
    Value,
    heads,
)
from containers.formatting import (
    interval,
    margin_share,
    number,
    one_line,
    parity_text,
    percent,
    sample_size,
    short_digest,
)
from containers.report.gates import gate_outcome, gate_section, sentence
from containers.report.samples import scored_samples
from containers.report.suites import (
    bare_interval,
    choice_note,
    interventions_table,
    padding_table,
    part_blocks,
    slope_table,
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
_EDITS_LEAD = (
    "Whether length alone moves a score: the same answer is edited by rule, and scored before and after. Padding puts "
    "filler after it, repetition its own sentences; rewriting puts the same content in more or in fewer words. Both "
    "sides of the drawn pairs are edited, whether their order is right or wrong. A good model may punish filler and "
    "repetition; it rewards neither, and no wording. Cutting removes content, so its effect is quality and length "
    "together. Lengths are in characters."
)
_PADDING_LEAD = (
    "How often filler changes an order: on the rejected side of pairs in the right order; on the lower-scored side of "
    "all drawn pairs, whatever the label; and how many pairs are in the right order with both sides padded to the same "
    "length."
)
_SLOPE_LEAD = (
    "How margin and length go together, given these labels. This describes the pairs and the model; it does not tell a "
    "bias. Where better answers are longer, a model without a bias has a positive slope; where people chose answers "
    "for their length, a negative one."
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
        _suites(certificate, (*((by_suite,) if by_suite else ()), *first)),
        _length(certificate, _titled(drawn, "length difference")),
        _scores(certificate, _titled(drawn, ": scores", ": calibration")),
        _parity(certificate),
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
        return Banner("bad", f"Below its minimum on {one_line(', '.join(missed), 200)}.", (measured,))
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
    if suite.minimum_accuracy is None:
        return False
    return suite.score is None or suite.score.value < suite.minimum_accuracy


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
        _parity_card(parity),
    )


def _parity_card(parity: ScoreParity) -> Card:
    share = parity.margin_difference
    paths = f"scores up to {number(parity.max_difference)} apart on {len(parity.paths)} code paths"
    if share is None:
        return Card("Score parity", "score parity", value=number(parity.max_difference), detail=paths)
    return Card(
        "Score parity",
        "score parity",
        value=margin_share(share),
        interval=f"of a typical margin; {parity.num_orders_changed} of {parity.num_pairs} orders changed",
        detail=paths,
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


def _suites(certificate: Certificate, plots: tuple[Plot, ...]) -> Section:
    lead = (
        "Each suite scores by its own published rule; pair accuracy counts every comparison of a better with a worse "
        f"answer, and a tie as half. Intervals are at {percent(certificate.confidence)} and over prompts: rows with "
        "the same prompt are no independent evidence."
    )
    blocks = (
        Note(lead, "lead", ("suite",)),
        suites_table(certificate.suites),
        *choice_note(certificate),
        Plots(plots),
    )
    return Section("Suites", blocks, anchor="suites", short="Suites")


def _length(certificate: Certificate, plots: tuple[Plot, ...]) -> Section:
    each: tuple[tuple[str, LengthBias], ...] = tuple(
        (suite.name, suite.length) for suite in certificate.suites if suite.num_pairs
    )
    together = (("All suites together", certificate.length),)
    rows = (*together, *each) if len(each) > 1 else each
    by_suite = (Fold("The same for each suite", (interventions_table(each),)),) if len(each) > 1 else ()
    blocks = (
        Note(_EDITS_LEAD, "lead", ("length effect",)),
        interventions_table(together if len(each) > 1 else each),
        *by_suite,
        Note(_PADDING_LEAD, "lead", ("padding attack",)),
        padding_table(rows),
        Note(_SLOPE_LEAD, "lead", ("length slope",)),
        slope_table(rows),
        Plots(plots),
    )
    return Section("Length bias", blocks, anchor="length", short="Length bias")


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


def _parity(certificate: Certificate) -> Section:
    parity = certificate.parity
    lead = (
        f"{parity.num_conversations:,} conversations, scored on every code path that a score can take; the reference: "
        f"{parity.reference}. Equal within {parity_text(parity)}. {_parity_bounds(parity)}"
    )
    within, differs = Text("equal within the bounds", tone="good"), Text("differs", tone="bad")
    rows: list[tuple[Value, ...]] = [
        (
            f"{path.name[:1].upper()}{path.name[1:]}",
            path.max_difference,
            margin_share(path.max_margin_difference / parity.typical_margin) if parity.typical_margin else None,
            path.num_orders_changed if parity.num_pairs else None,
            within if parity.allows(path) else differs,
        )
        for path in parity.paths
    ]
    columns = (
        *heads("Code path", "Largest difference", "Of a typical margin", "Orders changed", numbers=3),
        *heads("Verdict"),
    )
    return Section(
        "Score parity", (Note(lead, "lead"), Table(columns, tuple(rows))), anchor="parity", short="Score parity"
    )


def _parity_bounds(parity: ScoreParity) -> str:
    rounding = f"by more than {number(parity.bound)}, which rounding explains ({parity.precision})"
    if parity.margin_bound is None:
        return f"A model gets no certificate if a score differs {rounding}."
    return (
        f"A model gets no certificate if a score differs {rounding}, a margin by more than "
        f"{number(parity.margin_bound)} (typical: {number(parity.typical_margin)}), or if more than "
        f"{parity.orders_bound} orders change."
    )


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
