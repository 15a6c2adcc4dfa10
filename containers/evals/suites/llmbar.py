"""LLMBar: whether scores prefer following the instruction to fluent text. One natural set, four adversarial ones.

Published rule: the share of instances where the better output is preferred, averaged over both orders of the outputs,
so that equal ratings count half; Adversarial is the mean of its four sets, and the score the mean of all five.

Source: Zeng et al. 2023, arXiv:2310.07641; princeton-nlp/LLMBar, README and `LLMEvaluator/evaluate.py`
(`correct_average`, the rating evaluators).
"""

from functools import partial
from pathlib import Path

from containers.data.rows import MalformedRowError
from containers.evals.suites.base import Benchmark, Row, SuiteItem, known_subset, row_id, text_column
from containers.evals.suites.figures import section_figures
from containers.evals.suites.rows import Layout, pair_item, preference_item, read_suite

NATURAL = "Natural"
ADVERSARIAL = ("Neighbor", "GPTInst", "GPTOut", "Manual")
SECTIONS = {"Natural": {NATURAL: 1.0}, "Adversarial": {f"Adversarial/{name}": 1.0 for name in ADVERSARIAL}}
SUBSETS = tuple(subset for weights in SECTIONS.values() for subset in weights)


def _parse_published(row: Row) -> SuiteItem:
    label = row["label"]
    if isinstance(label, bool) or label not in (1, 2, "1", "2"):
        raise MalformedRowError("label_unknown", label)
    better = int(label)
    return pair_item(
        prompt=row["input"],
        chosen=row[f"output_{better}"],
        rejected=row[f"output_{3 - better}"],
        subset=_subset(row),
        item_id=row_id(row, "id"),
    )


def _subset(row: Row) -> str:
    """Return the subset by its published name; a row may leave out the folder's name of adversarial ones."""
    name = text_column(row, "subset")
    short = {item.casefold(): f"Adversarial/{item}" for item in ADVERSARIAL}
    return known_subset(short.get(name.casefold(), name), SUBSETS)


def _subset_of_place(file: Path) -> Row:
    """Return the subset that the nearest part of a file's path names; empty if none does.

    The published rows do not name their subset: their folder or file does, such as
    `Adversarial/Neighbor/dataset.json`. A column `subset` comes first.
    """
    names = {item.casefold(): item for item in (NATURAL, *ADVERSARIAL)}
    parts = (file.name.split(".")[0], *reversed(file.parent.parts))
    found = next((names[part.casefold()] for part in parts if part.casefold() in names), None)
    return {} if found is None else {"subset": found}


# TRL preference rows, or the published columns.
_LAYOUTS = (
    Layout(("subset", "prompt", "chosen", "rejected"), lambda row: preference_item(row, subset=_subset(row))),
    Layout(("subset", "input", "output_1", "output_2", "label"), _parse_published),
)
LLMBAR = Benchmark(
    name="llmbar",
    title="LLMBar",
    reader=partial(read_suite, layouts=_LAYOUTS, said_by_place=_subset_of_place),
    judge=partial(section_figures, sections=SECTIONS, tie=0.5, score_of="subsets"),
    tie_rule="Equal scores count as half right.",
    source="Zeng et al. 2023, arXiv:2310.07641; code of princeton-nlp/LLMBar",
)
