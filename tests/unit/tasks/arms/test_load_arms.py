"""A comparison that cannot compare must be refused before a GPU hour, with every mistake and the arm that has it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from containers.contracts.names import StageName
from tasks.arms.load import Comparison, load_comparison
from tasks.arms.shared import shared_stages
from tasks.config.errors import ConfigError, InvalidConfigError

RUN: dict[str, Any] = {
    "run": {"name": "base"},
    "gpu_profile": "cpu",
    "dataset": {"train": "pairs.jsonl"},
    "build_base_model": {},
    "train_sft": {"schedule": {"max_steps": 10}},
    "evaluate_policy": {"judges": [{"type": "length", "target": [1, 10]}]},
}
DPO = {"train_dpo": {"loss": "sigmoid", "schedule": {"max_steps": 5}}}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(RUN))


def comparison(**changes: Any) -> Comparison:
    file = {"name": "c", "start_from": "run.yaml", "arms": {"rloo": None, "dpo": {"set": DPO}}, **changes}
    Path("arms.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    return load_comparison(Path("arms.yaml"))


def mistakes(**changes: Any) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        comparison(**changes)
    return str(caught.value)


def test_each_arm_is_a_run_of_its_own_with_one_store(tmp_path: Path) -> None:
    found = comparison()
    assert found.names == ("rloo", "dpo")
    assert [arm.config.run.name for arm in found.arms] == ["c-rloo", "c-dpo"]
    assert [str(arm.config.output_dir) for arm in found.arms] == ["outputs/c/arms/rloo", "outputs/c/arms/dpo"]
    assert {str(arm.config.store_dir) for arm in found.arms} == {"outputs/store"}
    assert found.arms[0].report == "arms/rloo/report.html"
    assert (found.own_run.run.name, str(found.own_run.output_dir)) == ("c", "outputs/c")


def test_every_arm_comes_with_the_first_seed_before_any_with_the_second() -> None:
    found = comparison(seeds=[3, 5])
    assert [(arm.name, arm.seed) for arm in found.arms] == [("rloo", 3), ("dpo", 3), ("rloo", 5), ("dpo", 5)]
    assert found.arms[3].config.run.name == "c-dpo-seed-5"
    assert found.arms[3].config.seed_of(StageName.TRAIN_DPO) == 5
    assert {arm.config.seed_of(StageName.FILTER_DATASET) for arm in found.arms} == {0}


def test_a_grid_is_an_arm_for_each_combination() -> None:
    grid = {"train_policy.beta": [0.0, 0.05], "train_policy.num_generations": [4, 8]}
    found = comparison(arms={"rloo": {"grid": grid}})
    assert found.names == (
        "rloo-beta-0-0-num-generations-4",
        "rloo-beta-0-0-num-generations-8",
        "rloo-beta-0-05-num-generations-4",
        "rloo-beta-0-05-num-generations-8",
    )
    assert [arm.config.train_policy.beta for arm in found.arms] == [0.0, 0.0, 0.05, 0.05]
    assert set(found.differences) == {"train_policy.beta", "train_policy.num_generations"}
    assert found.differences["train_policy.beta"][found.names[2]] == 0.05


def test_arms_share_what_they_make_alike_and_nothing_else() -> None:
    found = comparison(arms={"rloo": None, "grpo": {"set": {"train_policy.algorithm": "grpo"}}, "dpo": {"set": DPO}})
    shared = shared_stages([arm.config for arm in found.arms])
    for stage in (StageName.FILTER_DATASET, StageName.TRAIN_SFT, StageName.EVALUATE_REWARD_MODEL):
        assert shared[stage] == [[0, 1, 2]]
    assert shared[StageName.TRAIN_POLICY] == [[0], [1]]
    assert shared[StageName.TRAIN_DPO] == [[2]]
    assert shared[StageName.SAMPLE_COMPLETIONS] == [[0], [1], [2]]


def test_what_differs_is_what_has_an_effect() -> None:
    found = comparison(arms={"rloo": None, "dpo": {"set": DPO}, "ipo": {"set": {"train_dpo": {"loss": "ipo"}}}})
    differences = found.differences
    assert differences["train_dpo"] == {"dpo": "takes part", "ipo": "takes part"}
    assert differences["train_policy"] == {"rloo": "takes part"}
    assert differences["train_dpo.loss"] == {"dpo": "sigmoid", "ipo": "ipo"}
    assert not any(key.startswith("train_policy.") for key in differences)  # one arm has it, so nothing differs in it
    assert "train_dpo.beta" not in differences and "run.name" not in differences


def test_seeds_share_everything_before_the_policy() -> None:
    found = comparison(seeds=[0, 1])
    shared = shared_stages([arm.config for arm in found.arms])
    assert shared[StageName.TRAIN_REWARD_MODEL] == [[0, 1, 2, 3]]
    assert shared[StageName.TRAIN_POLICY] == [[0], [2]]


def test_a_policy_of_pairs_is_judged_by_the_prompts_that_judge_the_others() -> None:
    beside = {arm.name: arm.config.pair_filters.eval_prompt_fraction for arm in comparison().arms}
    assert beside == {"rloo": 0.1, "dpo": 0.1}
    alone = comparison(arms={"dpo": {"set": DPO}, "ipo": {"set": {**DPO, "train_dpo": {"loss": "ipo"}}}})
    assert {arm.config.pair_filters.eval_prompt_fraction for arm in alone.arms} == {1.0}


def test_same_rewards_and_same_start_are_seen() -> None:
    assert comparison().same_start and comparison().same_rewards
    other_model = comparison(arms={"rloo": None, "more": {"set": {"train_reward_model.schedule.max_steps": 7}}})
    assert other_model.same_start and not other_model.same_rewards
    other_start = comparison(arms={"rloo": None, "more": {"set": {"train_sft.schedule.max_steps": 7}}})
    assert not other_start.same_start


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"arms": {"rloo": None}}, "arms: has one arm with one seed: there is nothing to compare. Add another."),
        ({"seeds": [1, 1]}, "seeds: names a seed twice."),
        ({"arms": {"start": None, "dpo": {"set": DPO}}}, "arms.start: is the name of the model that all arms start"),
        ({"arms": {"a": {"grid": {"train_policy.beta": [0.1, "0-1"]}}}}, "two arms are named `a-beta-0-1`"),
        ({"name": "n" * 40, "arms": {"a" * 30: None, "b": None}}, "it makes a longer name than 63 letters"),
        ({"arms": {"rloo": {"set": {"train_policy.betta": 1}}, "dpo": None}}, "Did you mean `beta`?"),
        ({"arms": {"rloo": {"sett": {}}, "dpo": None}}, "arms.rloo.sett: unknown key."),
        ({"set": {"run.output_dir": "elsewhere"}}, "run.output_dir: is its own for each arm: set name, output_dir"),
        ({"max_gpu_hours": 0}, "max_gpu_hours: 0 is too small; wanted more than 0"),
        ({"arms": {"rloo": None, "b": {"set": {"run.until": "train_sft"}}}}, "arms.b: run.until ends it before"),
        ({"arms": {"rloo": None, "b": {"set": {"run.max_gpu_hours": 1}}}}, "Set max_gpu_hours of the comparison."),
        (
            {"arms": {"rloo": None, "b": {"set": {"evaluate_policy.max_prompts": 7}}}},
            "arms.b: differs from `rloo` in what judges the policies, so that their figures would not compare: "
            "evaluate_policy.max_prompts",
        ),
        (
            {"arms": {"rloo": None, "b": {"set": {"filter_dataset.max_rows": 7}}}},
            "filter_dataset.max_rows. Set these for all arms, in `set`.",
        ),
        (
            {"arms": {"rloo": None, "b": {"set": {"evaluate_policy.judges": []}}}},
            "evaluate_policy.judges",
        ),
    ],
)
def test_mistakes_name_the_arm_and_what_to_do(changes: dict[str, Any], told: str) -> None:
    assert told in mistakes(**changes)


def test_all_mistakes_of_all_arms_come_at_once() -> None:
    text = mistakes(
        arms={"a": {"set": {"train_policy.algorithm": "rlo"}}, "b": {"set": {"train_policy.beta": -1}}, "c": None},
        seeds=[0, 1],
    )
    assert "arms.a: train_policy.algorithm" in text and "arms.b: train_policy.beta" in text
    assert text.count("arms.a:") == 1  # once, however many seeds
    assert "has 2 mistakes" in text


def test_a_run_is_no_comparison() -> None:
    with pytest.raises(
        ConfigError, match=r"is no comparison: it has no `arms`. A run starts with `rlhf run -c run.yaml`"
    ):
        load_comparison(Path("run.yaml"))
    with pytest.raises(ConfigError, match="is no file"):
        load_comparison(Path("absent.yaml"))


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[4].glob("configs/arms/*.yaml")), ids=lambda path: path.name
)
def test_the_comparisons_of_the_project_load(path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    found = load_comparison(path)
    assert len(found.arms) >= 2
