"""A retraining's decision and its figures as text, for the report and the Prefect pages. Pure."""

from collections.abc import Iterator

from containers.contracts.champions import Comparison, Contest, DecisionKind, RunDecision
from containers.formatting import MISSING, markdown_table, markdown_text, number, percent

CONTEST_HEADERS = (
    "Compared on",
    "n",
    "Challenger",
    "Champion",
    "Difference",
    "Interval",
    "Better",
    "Worse",
    "p",
    "Budget",
)
DECISION_WORDS: dict[DecisionKind, str] = {
    "first": "first champion",
    "won": "new champion",
    "lost": "champion stays",
    "same": "champion stays",
    "refused": "refused at its gate",
    "promoted": "promoted by hand",
    "rolled_back": "rolled back by hand",
}


def decision_markdown(decision: RunDecision) -> str:
    """A heading, the decision in a sentence, what MLflow shows, and the table of figures behind it."""
    comparison = decision.comparison
    parts = [
        f"## {markdown_text(decision.model)}: {DECISION_WORDS[decision.kind]}",
        markdown_text(decision.text, limit=1500),
        markdown_text(decision.registry, limit=600),
    ]
    if comparison is not None:
        table = markdown_table(CONTEST_HEADERS, contest_rows(comparison), right=range(1, len(CONTEST_HEADERS)))
        parts += [table, *left_out_lines(comparison), how_compared(comparison)]
    return "\n\n".join(part for part in parts if part) + "\n"


def points(share: float | None) -> str:
    """A difference of shares in percentage points with its sign. Example: -0.0123 gives `−1.2`."""
    if share is None:
        return MISSING
    found = round(100 * share, 1)
    return f"{found:+.1f}".replace("-", "−") if found else "0.0"


def contest_text(contest: Contest) -> str:
    """One line of figures."""
    found = contest.difference
    if found is None or contest.champion is None or contest.challenger is None:
        return f"{contest.name}: nothing was left to compare on"
    return (
        f"{contest.measure} on {contest.name} ({contest.count:,}): challenger {percent(contest.challenger)}, champion "
        f"{percent(contest.champion)}, difference {points(found.value)} points ({points(found.ci_low)} to "
        f"{points(found.ci_high)}), {contest.num_better:,} better and {contest.num_worse:,} worse, "
        f"p = {contest.p_value:.2g}"
    )


def contest_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """A row below `CONTEST_HEADERS` for each contest."""
    return [_row(item) for item in comparison.contests]


def left_out_lines(comparison: Comparison) -> Iterator[str]:
    """A sentence for each contest from which items were left out, and why."""
    for item in comparison.contests:
        reasons = []
        if item.seen_in_training:
            reasons.append(f"{item.seen_in_training:,} whose prompt one of the two was trained on")
        if item.not_in_both:
            reasons.append(f"{item.not_in_both:,} that were not judged for both")
        if reasons:
            yield f"Left out for both, of {item.name}: {' and '.join(reasons)}."


def how_compared(comparison: Comparison) -> str:
    """Explain the figures, and what the challenger needs to win."""
    others = " and keep within its budget on the others" if len(comparison.contests) > 1 else ""
    return (
        f"Differences in percentage points, with a paired bootstrap interval ({percent(comparison.confidence)}); p is "
        f"McNemar's exact test. The challenger must win on the first line (interval above 0, p below "
        f"{comparison.alpha:g}){others}."
    )


def _row(item: Contest) -> tuple[str, ...]:
    found = item.difference
    interval = f"{points(found.ci_low)} to {points(found.ci_high)}" if found else MISSING
    budget = MISSING if item.budget is None else f"{points(item.budget).lstrip('+')} points"
    return (
        f"{item.name} ({item.measure})",
        f"{item.count:,}",
        percent(item.challenger),
        percent(item.champion),
        points(found.value) if found else MISSING,
        interval,
        f"{item.num_better:,}",
        f"{item.num_worse:,}",
        number(item.p_value),
        budget + (" — fell further" if item.regresses else ""),
    )
