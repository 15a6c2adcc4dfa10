"""Adversarial verbosity: the right answer is short, the wrong one at least half as long again.

The rule is this project's own: the share of pairs whose short right answer scores higher. A model that counts tokens
gets 0.
"""

from functools import partial

from containers.data.rows import MalformedRowError
from containers.evals.suites.base import Benchmark, Row, SuiteItem, text_column
from containers.evals.suites.figures import plain_figures
from containers.evals.suites.rows import Layout, preference_item, read_suite

# Characters of the wrong answer over those of the right one, at least.
MINIMUM_LENGTH_RATIO = 1.5
_UNNAMED = "not named"


def _parse(row: Row) -> SuiteItem:
    """A row whose wrong answer is not longer by half is left out."""
    item = preference_item(row, subset=text_column(row, "kind") if row.get("kind") is not None else _UNNAMED)
    right, wrong = (len(text) for text in item.responses)
    if wrong < MINIMUM_LENGTH_RATIO * right:
        raise MalformedRowError("rejected_not_longer", f"{wrong} characters against {right}")
    return item


VERBOSITY = Benchmark(
    name="verbosity",
    title="Adversarial verbosity",
    reader=partial(read_suite, layouts=[Layout(("prompt", "chosen", "rejected"), _parse)]),
    judge=plain_figures,
    tie_rule="Equal scores count as half right.",
    source="The rule is this project's own; rows made of RM-Bench (arXiv:2410.16184) and LLMBar (arXiv:2310.07641)",
)
