"""The gate's rules on standard sets: how much the policy may lose there against the model that it started from."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from containers.contracts.configs.answer_sets import StandardSet
from containers.contracts.names import SET_ITEMS_FILE
from containers.contracts.records import GateRule
from containers.contracts.spec import ArtifactRef
from containers.evals.intervals import detectable, mean_end, mean_interval
from containers.evals.paired import PairedDifference, clustered_difference
from containers.formatting import percent

# A fall counts if it is beyond chance at this level, one-sided, over the number of sets with a maximum (Bonferroni).
_ALPHA = 0.05
_POWER = 0.8


def loss_rules(sets: Sequence[StandardSet], results: ArtifactRef) -> list[GateRule]:
    """A rule for each set with a maximum.

    A policy that loses more than the maximum beyond chance misses its rule; where `must_rule_out` says so, also one
    whose items cannot rule such a loss out.

    Args:
        results: the artifact of evaluate_sets.
    """
    bounded = [one for one in sets if one.maximum_loss is not None]
    return [_rule(one, one.maximum_loss or 0.0, _compared(one, results), num_bounded=len(bounded)) for one in bounded]


def _compared(one: StandardSet, results: ArtifactRef) -> tuple[float, float, PairedDifference] | None:
    """The shares of start model and policy, and their difference; None where nothing was told of an item."""
    columns = ["set", "prompt_id", "start", "policy"]
    rows = pq.read_table(Path(results.path) / SET_ITEMS_FILE, columns=columns).to_pylist()
    own = [row for row in rows if row["set"] == one.name and row["start"] is not None and row["policy"] is not None]
    if not own:
        return None
    pair = clustered_difference(
        [row["policy"] - row["start"] for row in own], [row["prompt_id"] for row in own], confidence=0.95
    )
    start, policy = (sum(row[model] for row in own) / len(own) for model in ("start", "policy"))
    return start, policy, pair


def _rule(
    one: StandardSet, maximum: float, compared: tuple[float, float, PairedDifference] | None, *, num_bounded: int
) -> GateRule:
    most = _points(maximum)
    wanted = f"a loss above {most} ruled out" if one.must_rule_out else f"no loss above {most} beyond chance"
    name = f"loss on {one.name}"
    if compared is None:
        return GateRule(name=name, wanted=wanted, found="its rule could tell about no item", passed=False)
    start, policy, pair = compared
    alpha = _ALPHA / num_bounded
    # A person reads that level off the interval, so the figure shown and the rule are of one kind.
    low, high = mean_interval(pair.figure, confidence=1 - 2 * alpha)
    falls = mean_end(pair.figure, alpha=alpha) < -maximum
    passed = low >= -maximum if one.must_rule_out else not falls
    shown = detectable(pair.figure, confidence=1 - 2 * alpha, power=_POWER) + maximum
    found = (
        f"{percent(start)} to {percent(policy)}: {_signed(pair.difference.value)} points "
        f"({_signed(low)} to {_signed(high)}) on {pair.num_prompts:,} prompts; "
        f"a loss of {_points(shown)} would show in 80 % of cases"
    )
    return GateRule(name=name, wanted=wanted, found=found, passed=passed)


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")
