"""The policies of several arms against each other: on the same prompts only, by a judge's word for each pair."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from containers.arms.records import START, JudgedArms, PolicyComparison
from containers.contracts.configs.compare_policies import ComparedPolicy, ComparePoliciesConfig
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judges import Judge
from containers.contracts.configs.parts.rewards import ExactTerm, LengthTerm
from containers.contracts.names import COMPARED_FILE, COMPLETIONS_FILE, POLICY_COMPARISON_FILE, SAMPLED_FILE, StageName
from containers.harness.context import StageContext
from containers.harness.errors import BadDataError, MissingPrerequisiteError
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt
from containers.rollouts.sampled import Sampled, write_sampled
from containers.stages import compare_policies
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages

ANSWERS = ["3", "4", "5", "6"]
# What each policy writes for each prompt; two completions of each are the same.
WRITES: Mapping[tuple[str, int], Sequence[str]] = {
    ("dpo", 0): ["3", "9", "9", "6"],
    ("grpo", 0): ["3", "4", "5", "9"],
    ("grpo", 1): ["3", "4", "5", "6"],
}


def prompt(number: int) -> PolicyPrompt:
    return PolicyPrompt(
        prompt_id=f"p{number}",
        domain="sums",
        conversation=({"role": "user", "content": f"What is {number}?"},),
        token_ids=(1, 2, number),
        answer=ANSWERS[number],
        columns={},
        other_answers=(),
    )


def completion(number: int, text: str) -> Completion:
    return Completion((1, 2, number), (7,), text=text, ended=True)


def written(
    folder: Path,
    texts: Sequence[str],
    *,
    reference: Sequence[str] = ("3", "0", "0", "0"),
    ids: Sequence[int] = range(4),
) -> dict[str, Path]:
    """The artifacts of one policy, by role."""
    twice = [(number, text, old) for number, text, old in zip(ids, texts, reference, strict=True) for _ in range(2)]
    sampled = Sampled(
        tuple(prompt(number) for number in ids),
        tuple(completion(number, text) for number, text, _ in twice),
        tuple(completion(number, old) for number, _, old in twice),
        (0.1,) * len(twice),
        "",
    )
    folders = {role: folder / role for role in ("completions", "verdict")}
    for one in folders.values():
        one.mkdir(parents=True)
    write_sampled(sampled, folders["completions"] / SAMPLED_FILE)
    rewards = [
        {"reward_policy": float(text == ANSWERS[number]), "reward_reference": float(old == ANSWERS[number])}
        for number, text, old in twice
    ]
    parquet.write_table(pa.Table.from_pylist(rewards), folders["verdict"] / COMPLETIONS_FILE)
    return folders


def compare(
    tmp_path: Path,
    *,
    judges: Sequence[Judge] = (ExactTerm(type="exact"),),
    changed: Mapping[tuple[str, int], Mapping[str, Any]] | None = None,
    **settings: Any,
) -> StageContext:
    inputs: dict[str, Path] = {}
    for place, (policy, texts) in enumerate(WRITES.items()):
        own = {"texts": texts, **(changed or {}).get(policy, {})}
        for role, folder in written(tmp_path / f"policy-{place}", **own).items():
            inputs[f"{role}_{place}"] = folder
    config = ComparePoliciesConfig(
        policies=tuple(ComparedPolicy(arm=arm, seed=seed) for arm, seed in WRITES),
        evaluation=EvaluatePolicyConfig(judges=tuple(judges), rewards_trained_it=False),
        **{"same_rewards": True, "with_start": True, **settings},
    )
    context = make_context(tmp_path, StageName.COMPARE_POLICIES, config, inputs)
    metrics = {metric.name: metric for metric in compare_policies.run(context)}
    assert metrics["exact_dpo_over_grpo"].unit == "fraction"
    return context


def found_in(context: StageContext) -> PolicyComparison:
    return PolicyComparison.model_validate_json((context.output / POLICY_COMPARISON_FILE).read_bytes())


def win_rates(judge: JudgedArms) -> dict[tuple[str, str], float]:
    return {(cell.arm, cell.other): cell.win_rate.value for cell in judge.cells}


def test_every_arm_meets_every_other_and_the_start_model(tmp_path: Path) -> None:
    found = found_in(compare(tmp_path))
    assert found.arms == (START, "dpo", "grpo")
    assert (found.num_prompts, found.completions_per_prompt) == (4, 2)
    exact, rewards = found.judges
    assert (exact.name, exact.is_outcome, rewards.name) == ("exact", True, "rewards")
    # dpo is right in 3 and 6, grpo with seed 0 in 3, 4 and 5, with seed 1 in all, the start model in 3 alone.
    assert win_rates(exact) == {
        ("dpo", START): fmean([0.5, 0.5, 0.5, 1]),
        ("grpo", START): fmean([0.5, 1, 1, fmean([0.5, 1])]),
        ("dpo", "grpo"): fmean([0.5, 0, 0, 1]),
    }
    assert win_rates(rewards) == win_rates(exact)
    shares = {value.arm: value.value.value for value in exact.values}
    assert shares == {START: 0.25, "dpo": 0.5, "grpo": fmean([1, 1, 1, 0.5])}
    assert next(value.by_seed for value in exact.values if value.arm == "grpo") == ((0, 0.75), (1, 1.0))
    assert rewards.trained == ("dpo", "grpo")


def test_every_figure_can_be_computed_again_from_the_rows(tmp_path: Path) -> None:
    context = compare(tmp_path)
    rows = [row for row in parquet.read_table(context.output / COMPARED_FILE).to_pylist() if row["judge"] == "exact"]
    for cell in found_in(context).judges[0].cells:
        of_prompts: dict[str, list[float]] = {}
        for row in rows:
            if (row["arm"], row["other"]) == (cell.arm, cell.other):
                expected = 0.5 + (row["value"] - row["other_value"]) / 2
                assert row["points"] == expected
                of_prompts.setdefault(row["prompt_id"], []).append(expected)
        assert cell.win_rate.value == pytest.approx(fmean(map(fmean, of_prompts.values())))
        assert sum(map(len, of_prompts.values())) == cell.num_wins + cell.num_ties + cell.num_losses


def test_arms_that_started_elsewhere_are_not_compared_with_a_start_model(tmp_path: Path) -> None:
    other = {("dpo", 0): {"reference": ["8", "8", "8", "8"]}}
    with pytest.raises(BadDataError, match="are not one model"):
        compare(tmp_path / "start", changed=other)
    assert found_in(compare(tmp_path, changed=other, with_start=False)).arms == ("dpo", "grpo")


def test_rewards_of_different_arms_are_compared_only_if_they_are_the_same(tmp_path: Path) -> None:
    assert [judge.name for judge in found_in(compare(tmp_path, same_rewards=False)).judges] == ["exact"]


def test_several_judges_share_the_chance_of_an_error(tmp_path: Path) -> None:
    judges: tuple[Judge, ...] = (ExactTerm(type="exact"), LengthTerm(type="length", target=(1, 3)))
    found = found_in(compare(tmp_path, judges=judges))
    assert [judge.name for judge in found.judges] == ["exact", "length", "rewards"]
    cells = [cell for judge in found.judges for cell in judge.cells]
    assert min(cell.p_adjusted for cell in cells) >= 9 * min(cell.p_value for cell in cells) or all(
        cell.p_adjusted == 1 for cell in cells
    )


@pytest.mark.parametrize("ids", [[0, 1, 3, 2], [0, 1, 2, 0]])
def test_arms_on_other_prompts_are_refused(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(BadDataError, match=r"answered different prompts: dpo with seed 0 8, grpo with seed 1 8"):
        compare(tmp_path, changed={("grpo", 1): {"ids": ids}})


@pytest.mark.parametrize(("name", "file"), [*product(["completions_1", "verdict_1"], [None, b"no parquet"])])
def test_a_damaged_artifact_is_named(tmp_path: Path, name: str, file: bytes | None) -> None:
    inputs: dict[str, Path] = {}
    for place, texts in enumerate(list(WRITES.values())[:2]):
        for role, folder in written(tmp_path / f"policy-{place}", texts).items():
            inputs[f"{role}_{place}"] = folder
    damaged = inputs[name] / (SAMPLED_FILE if name.startswith("completions") else COMPLETIONS_FILE)
    damaged.unlink()
    if file is not None:
        damaged.write_bytes(file)
    config = ComparePoliciesConfig(
        policies=(ComparedPolicy(arm="dpo", seed=0), ComparedPolicy(arm="grpo", seed=0)),
        evaluation=EvaluatePolicyConfig(judges=(ExactTerm(type="exact"),)),
        same_rewards=True,
        with_start=True,
    )
    context = make_context(tmp_path, StageName.COMPARE_POLICIES, config, inputs)
    with pytest.raises(MissingPrerequisiteError, match=damaged.name):
        compare_policies.run(context)
