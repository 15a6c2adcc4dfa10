"""The proof that each algorithm learns: a gain below the bound is a miss."""

import pytest

from benchmarks.learning import Learned, _has_learned, table
from containers.contracts.outcome import Metric
from containers.contracts.records import ComparedTerm

pytestmark = pytest.mark.stages


def term(after: float, low: float) -> ComparedTerm:
    def metric(value: float, *, ci_low: float, ci_high: float) -> Metric:
        return Metric(name="exact", value=value, unit="fraction", count=180, ci_low=ci_low, ci_high=ci_high)

    return ComparedTerm(
        name="exact",
        is_outcome=True,
        policy=metric(after, ci_low=after - 0.02, ci_high=after + 0.02),
        reference=metric(0.4, ci_low=0.38, ci_high=0.42),
        difference=metric(after - 0.4, ci_low=low, ci_high=low + 0.1),
    )


def test_the_table_has_a_line_each_and_a_gain_below_the_bound_is_a_miss() -> None:
    found = [
        Learned("grpo", 2, term(0.9, 0.4), 20),
        Learned("dpo", 1, term(0.5, 0.05), 20),
        Learned("grpo", 1, term(0.7, 0.2), 20),
    ]
    lines = table(found, count=1200).splitlines()
    assert [line.split(" | ")[:2] for line in lines[-3:]] == [["| grpo", "1"], ["| grpo", "2"], ["| dpo", "1"]]
    assert "| 40.0% | 90.0% (88.0% to 92.0%) | +50.0% (40.0% to 50.0%) | 20 |" in lines[-2]
    assert [_has_learned(one) for one in found] == [True, True, False]
    assert not _has_learned(Learned("dpo", 1, term(0.5, -0.01), 20))
