"""Detect inverted labels: they disagree with another judge on most rows, beyond chance.

The judge is the scores beside the labels, here, or a reference reward model (`containers.scoring.reference_polarity`).
Both follow one rule: the run stops if the whole interval of the agreement is below one half, and warns if it holds it.
"""

from collections.abc import Iterable, Sequence

from containers.contracts.funnel import LabelAgreement, PolarityCheck
from containers.data.filters.known_rows import check_readers
from containers.data.rows import PreferenceRow
from containers.data.sources import PairSource
from containers.evals.statistics import share_metric
from containers.harness.context import StageContext
from containers.harness.errors import BadDataError


def checked_polarity(
    context: StageContext, sources: Sequence[PairSource], *, confidence: float
) -> tuple[PolarityCheck, ...]:
    """Return how often labels agree with the scores beside them, for each source with such scores.

    Raises:
        BadDataError: they disagree with most labels of a source, beyond chance.
        RuntimeError: a reader takes the worse answer of a known row for the better one.
    """
    check_readers()
    checks = []
    for source in sources:
        check = agreement_with_scores(source.origin, (item.row for item in source.rows), confidence=confidence)
        if check is not None:
            context.recorder.note(verdict_on_scores(check))
            checks.append(check)
    return tuple(checks)


def agreement_with_scores(source: str, rows: Iterable[PreferenceRow], *, confidence: float) -> PolarityCheck | None:
    """Return how often the label agrees with the mean of the scores beside it; None if no row has both."""
    judged = [(bool(row.agrees_with_scores), row.prompt_id) for row in rows if row.agrees_with_scores is not None]
    if not judged:
        return None
    votes, prompts = zip(*judged, strict=True)
    return score_agreement(source, votes, prompts, confidence=confidence)


def score_agreement(source: str, votes: Sequence[bool], prompts: Sequence[str], *, confidence: float) -> PolarityCheck:
    """Return the share of rows whose label agrees, with its interval over prompts; there is at least one row."""
    found = share_metric(votes, name="agreement", confidence=confidence, clusters=prompts)
    return PolarityCheck(
        source=source,
        num_judged=len(votes),
        num_agreeing=sum(votes),
        agreement=found.value,
        low=found.ci_low,
        high=found.ci_high,
        confidence=confidence,
    )


def verdict_on_scores(check: PolarityCheck) -> str:
    """Return the result as a sentence; raises as `verdict_on`."""
    return verdict_on(
        check,
        judge="the scores beside it",
        unit="rows",
        if_inverted="Look at some rows: in HelpSteer3's schema a negative overall_preference says that response 1 is "
        "better. Correct the sign in the file.",
        if_undecided="Look at some rows: either the label or the scores may be upside down.",
    )


def verdict_on(
    check: LabelAgreement, *, judge: str, unit: str, if_inverted: str, if_undecided: str, left_out: str = ""
) -> str:
    """Return the result of the check as a sentence with its interval; a warning if it may be chance.

    Args:
        if_inverted, if_undecided: what to do then; whole sentences.
        left_out: what was not judged, beginning with `; `.

    Raises:
        BadDataError: the labels choose the response that the judge finds worse, beyond chance.
    """
    figures = (
        f"{check.source}: the label agrees with {judge} on {check.agreement:.1%} of {check.num_judged:,} {unit} "
        f"({check.confidence:.0%} interval {check.low:.1%} to {check.high:.1%}{left_out})"
    )
    if check.is_inverted:
        raise BadDataError(
            f"{figures}. That is less than half, beyond chance: the label most likely points to the worse response, "
            f"and a model would learn the opposite. {if_inverted}"
        )
    if check.says_nothing:
        return (
            f"Warning: {figures}. That may be chance, so it says nothing about the sign of the labels. {if_undecided}"
        )
    return f"{figures}."
