"""JudgeBench: pairs of which one response is objectively correct, from four kinds of questions.

Published rule: the share of pairs whose preferred response is the correct one, over all pairs; the beginning of
`source` gives the kind. A judge compares both orders, and a pair counts as correct only if it wins on balance, so equal
scores are not correct.

Source: Tan et al. 2024, arXiv:2410.12784; ScalerLab/JudgeBench, `run_judge.py`, `utils/metrics.py`, `utils/judges.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from containers.data.rows import MalformedRowError
from containers.evals.suites.base import (
    Benchmark,
    Intervals,
    Row,
    ScoredItem,
    SuiteFigures,
    SuiteItem,
    UnknownSubsetError,
    row_id,
    text_column,
)
from containers.evals.suites.figures import by_subset, joined, pair_credits, pooled_figures, shares
from containers.evals.suites.rows import Layout, pair_item, read_suite

# Section: how the source of its pairs begins.
SECTIONS = {
    "Knowledge": "mmlu-pro",
    "Reasoning": "livebench-reasoning",
    "Math": "livebench-math",
    "Coding": "livecodebench",
}


def _parse(row: Row) -> SuiteItem:
    source = text_column(row, "source" if "source" in row else "subset")
    if not source.startswith(tuple(SECTIONS.values())):
        raise UnknownSubsetError(source, [f"{beginning}…" for beginning in SECTIONS.values()])
    label = text_column(row, "label")
    if label not in ("A>B", "B>A"):
        raise MalformedRowError("label_unknown", label)
    better, worse = ("response_A", "response_B") if label == "A>B" else ("response_B", "response_A")
    return pair_item(
        prompt=row["question"],
        chosen=row[better],
        rejected=row[worse],
        subset=source,
        item_id=row_id(row, "pair_id", "id"),
    )


def judge(scored: Sequence[ScoredItem], intervals: Intervals) -> SuiteFigures:
    """Accuracy over all pairs, by section and by source."""
    credits = pair_credits(by_subset(scored), tie=0.0)
    sections = {
        section: joined(found for source, found in credits.items() if source.startswith(beginning))
        for section, beginning in SECTIONS.items()
    }
    missing = tuple(section for section, found in sections.items() if not found)
    judged = {section: found for section, found in sections.items() if found}
    return replace(pooled_figures(credits, intervals), sections=shares(judged, intervals), missing=missing)


_TEXTS = ("question", "response_A", "response_B", "label")
JUDGE_BENCH = Benchmark(
    name="judge_bench",
    title="JudgeBench",
    # The published column `source` may also be called `subset`, and `pair_id` may be `id`.
    reader=partial(read_suite, layouts=[Layout((*_TEXTS, column), _parse) for column in ("source", "subset")]),
    judge=judge,
    tie_rule="Equal scores count as wrong.",
    source="Tan et al. 2024, arXiv:2410.12784; code of ScalerLab/JudgeBench",
)
