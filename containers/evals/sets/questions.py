"""Questions with a reference answer each, in the forms that prompt sets have: GSM8K, MATH, POLARIS, AMC, OpenR1."""

from collections.abc import Callable
from pathlib import Path

from containers.data.prompts.forms import FORMS
from containers.data.prompts.rows import PromptRow
from containers.data.row_forms import RowForm
from containers.data.rows import MalformedRowError
from containers.evals.sets.base import SetItem, SetKind
from containers.evals.suites.base import Row, SuiteItem, SuiteRows, row_id
from containers.evals.suites.rows import Layout, read_suite


def _parser(form: RowForm[PromptRow]) -> Callable[[Row], SuiteItem]:
    def parse(row: Row) -> SuiteItem:
        found = form.row_of(dict(row))
        if found.answer is None:
            raise MalformedRowError("no_reference_answer", str(row)[:80])
        return SetItem(
            item_id=row_id(row, "id") or found.row_id,
            prompt=found.prompt,
            responses=(),
            subset=_subset(row, found),
            comparisons=(),
            answers=(found.answer, *found.other_answers),
        )

    return parse


def _subset(row: Row, found: PromptRow) -> str:
    named = next((row[name] for name in ("benchmark", "subject", "level") if isinstance(row.get(name), str)), "")
    return str(named) or found.domain


def _read(path: Path, title: str) -> SuiteRows:
    return read_suite(path, title, layouts=[Layout(form.columns, _parser(form)) for form in FORMS])


MATH = SetKind(
    name="math",
    title="Questions with numbers or expressions as answers",
    measure="right answers",
    reader=_read,
    source="math-verify; rows as of GSM8K (arXiv:2110.14168), MATH (arXiv:2103.03874), POLARIS",
)
EXACT = SetKind(
    name="exact",
    title="Questions with texts as answers",
    measure="right answers",
    reader=_read,
    source="The answer letter for letter, but for white space and capitals",
)
