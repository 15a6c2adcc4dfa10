"""Without preferences a run has no reward model: other rewards train and judge its policy, or it is refused."""

from pathlib import Path

import pytest

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.rewards import MathTerm
from containers.contracts.configs.sample_completions import SampleCompletionsConfig
from containers.contracts.names import StageName
from tasks.config.errors import InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.run_files import write_run

ON_REWARDS = {
    "dataset": None,
    "train_reward_model": None,
    "prompts": {"train": "prompts.jsonl"},
    "train_policy": {"lora": {"r": 8}, "rewards": [{"type": "math"}], "schedule": {"max_steps": 30}},
}


def mistakes(folder: Path, **sections: object) -> list[str]:
    with pytest.raises(InvalidConfigError) as refused:
        load_run_config(write_run(folder, **{**ON_REWARDS, **sections}))
    return [str(mistake) for mistake in refused.value.mistakes]


def test_a_run_on_rewards_alone_has_no_stage_of_a_reward_model(tmp_path: Path) -> None:
    config = load_run_config(write_run(tmp_path, **ON_REWARDS)).config
    assert config.stages == (
        StageName.CHECK_SYSTEM,
        StageName.FILTER_PROMPTS,
        StageName.BUILD_BASE_MODEL,
        StageName.TRAIN_POLICY,
        StageName.SAMPLE_COMPLETIONS,
        StageName.EVALUATE_POLICY,
        StageName.WRITE_REPORT,
    )
    judged = config.stage_config(StageName.EVALUATE_POLICY)
    assert isinstance(judged, EvaluatePolicyConfig) and judged.rewards == (MathTerm(name="math"),)


def test_evaluation_lets_the_policy_think_where_training_did(tmp_path: Path) -> None:
    policy = {**ON_REWARDS["train_policy"], "enable_thinking": True}  # type: ignore[dict-item]
    config = load_run_config(write_run(tmp_path, **{**ON_REWARDS, "train_policy": policy})).config
    sampling = config.stage_config(StageName.SAMPLE_COMPLETIONS)
    assert isinstance(sampling, SampleCompletionsConfig) and sampling.enable_thinking
    with pytest.raises(InvalidConfigError, match="enable_thinking: the reward model scores whole completions"):
        load_run_config(write_run(tmp_path, train_policy={"lora": {"r": 8}, "enable_thinking": True}))


def test_the_longest_text_of_a_reward_model_limits_nothing_where_there_is_none(tmp_path: Path) -> None:
    policy = {**ON_REWARDS["train_policy"], "max_completion_length": 4096}  # type: ignore[dict-item]
    longest = {"max_completion_length": 4096}
    loaded = load_run_config(write_run(tmp_path, **{**ON_REWARDS, "train_policy": policy, "evaluate_policy": longest}))
    assert loaded.config.train_policy.max_completion_length == 4096


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"prompts": None}, "dataset: neither dataset nor prompts is given. Name preferences in `dataset`"),
        (
            {"train_sft": {}},
            "train_sft: is fine-tuned on the chosen answers of preferences, and there is no `dataset`.",
        ),
        (
            {"train_dpo": {}},
            "train_dpo: trains on preferences, and there is no `dataset`. Name one, or leave train_dpo",
        ),
        ({"reward_model": {"path": "m"}}, "reward_model: earns its certificate on preferences"),
        (
            {"train_reward_model": {"max_length": 64}},
            "train_reward_model: is set, and without `dataset` the run has no reward model.",
        ),
        (
            {"evaluate_reward_model": {"batch_size": 3}},
            "evaluate_reward_model: is set, and without `dataset` the run has no reward model.",
        ),
        ({"train_policy": {}}, "train_policy.rewards: the reward model gives rewards, and without `dataset`"),
        ({"run": {"name": "x", "until": "train_reward_model"}}, "`train_reward_model` is no stage of this run"),
    ],
)
def test_what_needs_preferences_is_refused_with_what_to_do(
    tmp_path: Path, sections: dict[str, object], expected: str
) -> None:
    assert any(expected in mistake for mistake in mistakes(tmp_path, **sections)), mistakes(tmp_path, **sections)
