"""Champions, challengers and decisions as lines for the terminal. Pure."""

from collections.abc import Iterator

from containers.formatting import metric_text, moment, number
from containers.report.champions import DECISION_WORDS, contest_text
from tasks.champions.record import ChampionRecord, Decision, ModelVersion

_VERDICTS = {
    "first": "the first champion",
    "won": "won against the champion",
    "lost": "did not win against the champion",
    "promoted": "promoted by hand",
    "rolled_back": "brought back by hand",
}


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
                yield f"      {contest_text(item)}"


def decision_line(decision: Decision) -> str:
    """One sentence: what was decided and why; if a person decided, also who."""
    if decision.is_by_hand:
        return (
            f"version {decision.champion_after} was {DECISION_WORDS[decision.kind]}, by {decision.by}: {decision.text}"
        )
    return decision.text


def _version_line(record: ChampionRecord, version: ModelVersion) -> str:
    verdicts = [
        _VERDICTS[item.kind] for item in record.decisions if item.version == version.number and item.kind in _VERDICTS
    ]
    figures = ", ".join(f"{metric.name} {number(metric.value)}" for metric in version.figures[:2])
    decided = f"; {', '.join(dict.fromkeys(verdicts))}" if verdicts else ""
    return f"made {moment(version.made_at)} from {version.dataset_text}; {figures}{decided}"
