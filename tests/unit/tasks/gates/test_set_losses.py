"""How much a policy may lose on a standard set: held against simulated policies, and against single cases."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from containers.contracts.configs.answer_sets import StandardSet
from containers.contracts.names import SET_ITEMS_FILE, StageName
from containers.contracts.records import GateRule
from containers.contracts.spec import ArtifactRef
from tasks.gates.set_losses import loss_rules


def results(folder: Path, sides: dict[str, tuple[Sequence[float], Sequence[float]]]) -> ArtifactRef:
    rows = [
        {"set": name, "prompt_id": f"{name}{place}", "start": one, "policy": other}
        for name, (start, policy) in sides.items()
        for place, (one, other) in enumerate(zip(start, policy, strict=True))
    ]
    folder.mkdir(exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), folder / SET_ITEMS_FILE)
    return ArtifactRef(stage=StageName.EVALUATE_SETS, key="0" * 64, path=str(folder), digest="sha256:0")


def bounded(name: str, maximum: float | None, **settings: Any) -> StandardSet:
    return StandardSet(name=name, kind="math", path="p", maximum_loss=maximum, **settings)


def rule(folder: Path, start: Sequence[float], policy: Sequence[float], **settings: Any) -> GateRule:
    (found,) = loss_rules([bounded("sums", 0.01, **settings)], results(folder, {"sums": (start, policy)}))
    return found


def drawn(seed: int, *, count: int, loss: float) -> tuple[list[float], list[float]]:
    """Answers of a start model that is right in 0.6, and of a policy that changes a tenth of them, and loses some."""
    dice = random.Random(seed)  # noqa: S311
    start = [float(dice.random() < 0.6) for _ in range(count)]
    policy = list(start)
    for place in range(count):
        if dice.random() < 0.1:
            policy[place] = float(dice.random() < 0.6)
        if start[place] and dice.random() < loss / 0.6:
            policy[place] = 0.0
    return start, policy


def test_equal_policies_pass_and_one_that_lost_much_is_stopped(tmp_path: Path) -> None:
    verdicts = [
        [rule(tmp_path, *drawn(seed, count=500, loss=loss)).passed for seed in range(60)] for loss in (0.0, 0.01, 0.08)
    ]
    equal, within, lost = (sum(passed) / 60 for passed in verdicts)
    assert equal >= 0.97
    assert within >= 0.9
    assert lost <= 0.1


def test_ruling_a_loss_out_needs_many_items(tmp_path: Path) -> None:
    few = rule(tmp_path, *drawn(1, count=200, loss=0.0), must_rule_out=True)
    assert not few.passed and few.wanted == "a loss above 1.0 points ruled out"
    many = rule(tmp_path, *drawn(1, count=40_000, loss=0.0), must_rule_out=True)
    assert many.passed


def test_the_rule_says_both_scores_the_difference_and_what_would_show(tmp_path: Path) -> None:
    found = rule(tmp_path, [1.0] * 80 + [0.0] * 20, [1.0] * 70 + [0.0] * 30)
    assert found.name == "loss on sums" and found.wanted == "no loss above 1.0 points beyond chance"
    assert found.found.startswith("80.0 % to 70.0 %: −10.0 points (−15.1 to −4.9) on 100 prompts; a loss of ")
    assert not found.passed
    assert "would show in 80 % of cases" in found.found


def test_several_sets_are_corrected_and_those_without_a_maximum_have_no_rule(tmp_path: Path) -> None:
    # One-sided p of about 0.03: beyond chance alone, not as one of three.
    start, policy = [1.0] * 200, [1.0] * 191 + [0.0] * 9
    sides = {"a": (start, policy), "b": (start, start), "c": (start, start), "d": (start, policy)}
    kept = results(tmp_path, sides)
    (alone,) = loss_rules([bounded("a", 0.018)], kept)
    three = loss_rules([bounded("a", 0.018), bounded("b", 0.01), bounded("c", 0.01), bounded("d", None)], kept)
    assert not alone.passed
    assert [one.name for one in three] == ["loss on a", "loss on b", "loss on c"]
    assert all(one.passed for one in three)


def test_a_set_that_tells_nothing_does_not_pass(tmp_path: Path) -> None:
    kept = results(tmp_path, {"others": ([1.0], [1.0])})
    (found,) = loss_rules([bounded("sums", 0.01)], kept)
    assert not found.passed and "no item" in found.found


@pytest.mark.parametrize("gain", [0.0, 0.05])
def test_a_gain_is_no_loss(tmp_path: Path, gain: float) -> None:
    start = [1.0] * 50 + [0.0] * 50
    better = [1.0] * round(50 + 100 * gain) + [0.0] * round(50 - 100 * gain)
    assert rule(tmp_path, start, better).passed
