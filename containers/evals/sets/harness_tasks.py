"""Tasks of lm-evaluation-harness: it reads their questions and says which answers are right.

Source: EleutherAI/lm-evaluation-harness; Biderman et al. 2024, arXiv:2405.14782.
"""

from pathlib import Path

from containers.evals.sets.base import SetKind
from containers.evals.suites.base import SuiteRows


def _nothing(path: Path, title: str) -> SuiteRows:
    return SuiteRows(items=(), rows_read=0)


LM_EVAL = SetKind(
    name="lm_eval",
    title="Task of lm-evaluation-harness",
    measure="by the task's first metric",
    reader=_nothing,
    source="lm-evaluation-harness, arXiv:2405.14782",
)
