"""Champions, challengers and decisions as people read them: Markdown for Prefect, lines for the terminal. Pure."""

from collections.abc import Iterator

from containers.human_text import MISSING, markdown_table, markdown_text, metric_text, moment, number, percent
from tasks.champion_record import ChampionRecord, Comparison, Contest, Decision, ModelVersion, points

_KINDS = {
    "first": "first champion",
    "won": "new champion",
    "lost": "champion stays",
    "same": "champion stays",
    "refused": "refused at its gate",
    "promoted": "promoted by hand",
    "rolled_back": "rolled back by hand",
}
_VERDICTS = {
    "first": "the first champion",
    "won": "won against the champion",
    "lost": "did not win against the champion",
    "promoted": "promoted by hand",
    "rolled_back": "brought back by hand",
}
_HEADERS = ("Compared on", "n", "Challenger", "Champion", "Difference", "Interval", "Better", "Worse", "p", "Budget")


def decision_markdown(record: ChampionRecord, decision: Decision) -> str:
    """The decision in a sentence, then the table of figures behind it."""
    parts = [f"## {record.name}: {_KINDS[decision.kind]}", markdown_text(decision.text, limit=1500)]
    if decision.comparison is not None:
        parts += [_table(decision.comparison), *_left_out(decision.comparison), _how(decision.comparison)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(comparison: Comparison) -> str:
    rows = [_row(item) for item in comparison.contests]
    return markdown_table(_HEADERS, rows, right=range(1, len(_HEADERS)))


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


def _left_out(comparison: Comparison) -> Iterator[str]:
    for item in comparison.contests:
        reasons = []
        if item.seen_in_training:
            reasons.append(f"{item.seen_in_training:,} whose prompt one of the two was trained on")
        if item.not_in_both:
            reasons.append(f"{item.not_in_both:,} that not both could be judged on")
        if reasons:
            yield f"Left out for both, of {item.name}: {' and '.join(reasons)}."


def _how(comparison: Comparison) -> str:
    return (
        f"Differences in percentage points, with a paired bootstrap interval ({percent(comparison.confidence)}); p is "
        f"McNemar's exact test. The challenger must win on the first line (interval above 0, p below "
        f"{comparison.alpha:g}) and keep within its budget on the others."
    )


def standing_lines(record: ChampionRecord) -> Iterator[str]:
    """Champion, other versions, and the whole history, the newest last."""
    champion = record.champion
    if champion is None:
        yield f"{record.name}: no champion yet. The first model that passes its gate in a retraining becomes one."
        if not record.decisions:
            return
    else:
        yield f"{record.name}: {champion.shown} is champion."
        for figure in champion.figures:
            yield f"       {figure.name}: {metric_text(figure)}"
    yield ""
    yield "Versions"
    for version in record.versions:
        mark = "*" if version == champion else " "
        yield f"{mark} {version.number:>3}  {_version_line(record, version)}"
    if record.decisions:
        yield ""
        yield "History"
    for decision in record.decisions:
        yield f"  {moment(decision.at)}  {decision_line(decision)}"
        if decision.comparison is not None:
            for item in decision.comparison.contests[1:]:
                yield f"      {item.text}"


def decision_line(decision: Decision) -> str:
    """One sentence: what was decided and why; by whom, where it was a person."""
    if decision.is_by_hand:
        return f"version {decision.champion_after} was {_KINDS[decision.kind]}, by {decision.by}: {decision.text}"
    return decision.text


def _version_line(record: ChampionRecord, version: ModelVersion) -> str:
    verdicts = [
        _VERDICTS[item.kind] for item in record.decisions if item.version == version.number and item.kind in _VERDICTS
    ]
    figures = ", ".join(f"{metric.name} {number(metric.value)}" for metric in version.figures[:2])
    decided = f"; {', '.join(dict.fromkeys(verdicts))}" if verdicts else ""
    return f"made {moment(version.made_at)} from {version.dataset_text}; {figures}{decided}"
