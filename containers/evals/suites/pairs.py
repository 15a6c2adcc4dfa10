"""Plain preference pairs in any schema that the project reads: the share of pairs that the model orders rightly."""

from collections import Counter
from pathlib import Path

from containers.data.filters.flaws import first_flaw
from containers.data.formats.files import data_files
from containers.data.reader import read_rows
from containers.evals.suites.base import Benchmark, Comparison, SuiteItem, SuiteRows
from containers.evals.suites.figures import plain_figures
from containers.evals.suites.rows import RowTally


def _read(path: Path, title: str) -> SuiteRows:
    """Read the pairs that have an order; malformed rows, ties, and pairs that teach nothing are left out."""
    tally = RowTally(title=title)
    votes: Counter[str] = Counter()
    for file in data_files(path):
        for line in read_rows(file):
            place = f"{file.name} line {line.line}"
            reason = line.reason if line.row is None else first_flaw(line.row)
            if line.row is None or reason:
                tally.leave_out(reason, place, line.seen)
                continue
            pair = line.row.pair
            votes[pair.pair_id] += 1
            vote = votes[pair.pair_id]
            item = SuiteItem(
                # A file of votes may hold one pair more than once, and each vote counts.
                item_id=pair.pair_id if vote == 1 else f"{pair.pair_id}:{vote}",
                prompt=pair.prompt,
                responses=(pair.chosen, pair.rejected),
                subset=pair.domain,
                comparisons=(Comparison(0, 1),),
                line=line.line,
            )
            tally.add(item, place)
    return tally.rows()


PAIRS = Benchmark(
    name="pairs",
    title="Preference pairs",
    reader=_read,
    judge=plain_figures,
    tie_rule="Equal scores count as half right; pairs that people found equally good are left out.",
    source="Accuracy of a Bradley-Terry model: Christiano et al. 2017, arXiv:1706.03741",
)
