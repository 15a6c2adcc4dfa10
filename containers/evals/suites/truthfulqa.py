"""Truth: the best answer of a TruthfulQA question against one incorrect answer that people often believe.

The rule is this project's own, made of the questions of Lin et al. 2021, arXiv:2109.07958: the share of questions whose
best answer scores higher. If a row lists the incorrect answers, a digest of the question chooses one, so that every
run compares the same one.
"""

import hashlib
from functools import partial

from containers.evals.suites.base import Benchmark, Row, SuiteItem, list_column, row_id, text_column
from containers.evals.suites.figures import plain_figures
from containers.evals.suites.rows import Layout, pair_item, read_suite

_UNNAMED = "not named"


def _parse_lists(row: Row) -> SuiteItem:
    answers = list_column(row, "incorrect_answers")
    number = int(hashlib.sha256(text_column(row, "question").encode()).hexdigest(), 16)
    return _item(row, answers[number % len(answers)])


def _item(row: Row, incorrect: object) -> SuiteItem:
    return pair_item(
        prompt=row["question"],
        chosen=row["best_answer"],
        rejected=incorrect,
        subset=text_column(row, "category") if row.get("category") is not None else _UNNAMED,
        item_id=row_id(row, "id"),
    )


# Triplets, or the published lists.
_LAYOUTS = (
    Layout(("question", "best_answer", "incorrect_answer"), lambda row: _item(row, row["incorrect_answer"])),
    Layout(("question", "best_answer", "incorrect_answers"), _parse_lists),
)
TRUTHFULQA = Benchmark(
    name="truthfulqa",
    title="Truth (TruthfulQA triplets)",
    reader=partial(read_suite, layouts=_LAYOUTS),
    judge=plain_figures,
    tie_rule="Equal scores count as half right.",
    source="Questions and answers: Lin et al. 2021, arXiv:2109.07958; the rule is this project's own",
)
