"""Keys that are fine one by one can make a run that wastes a night; each such pair is refused with its numbers."""

from pathlib import Path

import pytest

from tasks.config.errors import InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.run_files import PROFILE, write_run

DIVIDED = {"num_processes": 2, "distribution": "fsdp"}
LARGE_JUDGE = {"type": "language_model", "path": "large", "engine": "vllm"}
TWO_GPUS = {**PROFILE, "num_gpus": 2, "num_processes": 2, "gpu_memory_gib": 48}


def mistakes(folder: Path, **sections: object) -> list[str]:
    try:
        load_run_config(write_run(folder, **sections))
    except InvalidConfigError as error:
        return [str(mistake) for mistake in error.mistakes]
    return []


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"build_base_model": None}, "base_model: neither base_model nor build_base_model is given."),
        ({"base_model": {"path": "m"}}, "base_model: both base_model and build_base_model are given."),
        (
            {"tokenizer_file": "x.tiktoken"},
            "build_base_model.vocabulary_size: 512 beside tokenizer_file, which has its own vocabulary.",
        ),
        (
            {"build_base_model": {"vocabulary_size": None}},
            "build_base_model.vocabulary_size: is null, so no tokenizer can be trained",
        ),
        (
            {"build_base_model": None, "base_model": {"path": "m"}, "tokenizer_file": "x"},
            "tokenizer_file: is given, but only build_base_model reads it.",
        ),
        ({"filter_dataset": {"max_tokens": 64}}, "filter_dataset.max_tokens: 64 needs the tokenizer of a base_model"),
        (
            {"filter_dataset": {"policy_eval_prompt_fraction": 0}},
            "filter_dataset.policy_eval_prompt_fraction: 0 leaves no prompt to evaluate the policy on.",
        ),
        (
            {"dataset": {"train": "x"}, "filter_dataset": {"validation_fraction": 0}},
            "filter_dataset.validation_fraction: 0 leaves no pair to judge the reward model by",
        ),
        (
            {"train_policy": {"global_batch_size": 10, "num_generations": 4, "lora": {"r": 8}}},
            "train_policy.global_batch_size: global_batch_size 10 cannot be divided over 1 ranks in groups of 4: "
            "it must be a multiple of 4. Nearest: 8 or 12.",
        ),
        (
            {"gpu_profile": {**PROFILE, "default_global_batch_size": 9}},
            "train_policy.global_batch_size: global_batch_size 9 cannot be divided over 1 ranks in groups of 4: "
            "it must be a multiple of 4. Nearest: 8 or 12. It is the default of gpu_profile `small`.",
        ),
        (
            {"train_policy": {"rollout_engine": "vllm", "lora": {"r": 600}}, "build_base_model": {"hidden_size": 1024}},
            "train_policy.lora.r: 600 is more than 512, the largest rank that vLLM takes.",
        ),
        (
            {"train_policy": {"distribution": "fsdp", "lora": None}},
            "train_policy.distribution: fsdp divides a policy over ranks, and on profile `small` it has one. Use ddp.",
        ),
        (
            {"train_policy": {"distribution": "fsdp", "algorithm": "ppo", "lora": {"r": 8}}, "gpu_profile": TWO_GPUS},
            "train_policy.distribution: fsdp with algorithm ppo: its critic is not divided. Use ddp, or an algorithm",
        ),
        (
            {
                "train_policy": {"distribution": "fsdp", "rollout_engine": "vllm", "lora": {"r": 8}},
                "gpu_profile": TWO_GPUS,
            },
            "train_policy.distribution: fsdp with rollout_engine vllm and adapters: vLLM gets these from a rank",
        ),
        (
            {
                "train_policy": {"distribution": "fsdp", "quantization": "int8", "lora": {"r": 8}},
                "gpu_profile": TWO_GPUS,
            },
            "train_policy.quantization: int8 with `distribution: fsdp`: weights of whole numbers cannot be divided.",
        ),
        (
            {"train_policy": {"vllm_gpus": 1, "lora": {"r": 8}}, "gpu_profile": TWO_GPUS},
            "train_policy.vllm_gpus: 1 GPUs are kept for vLLM, and rollout_engine is shared_prompts, so they would",
        ),
        (
            {"train_policy": {"rollout_engine": "vllm", "vllm_gpus": 2, "lora": {"r": 8}}, "gpu_profile": TWO_GPUS},
            "train_policy.vllm_gpus: 2 for vLLM leave none for a rank: gpu_profile `small` has 2 GPUs.",
        ),
        (
            {"evaluate_policy": {"judges": [{**LARGE_JUDGE, "vllm_gpus": 4}]}, "gpu_profile": TWO_GPUS},
            "evaluate_policy.judges.0.vllm_gpus: 4 GPUs for language_model, and gpu_profile `small` has 2.",
        ),
        (
            {"train_policy": {"rollout_engine": "vllm", "vllm_gpus": 1, "lora": {"r": 8}}},
            "train_policy.vllm_gpus: 1 for vLLM leave none for a rank: gpu_profile `small` has no GPU.",
        ),
        (
            {"gpu_profile": {**TWO_GPUS, "num_processes": 1, "num_rollout_gpus": 1}},
            "gpu_profile.num_rollout_gpus: train_policy decides which GPUs have no rank.",
        ),
        # One of nine GPUs has no rank.
        (
            {
                "train_policy": {"rollout_engine": "vllm", "vllm_gpus": 1, "global_batch_size": 12, "lora": {"r": 8}},
                "gpu_profile": {**TWO_GPUS, "num_gpus": 9, "num_processes": 9, "default_global_batch_size": 72},
            },
            "train_policy.global_batch_size: global_batch_size 12 cannot be divided over 8 ranks in groups of 4",
        ),
        (
            {"train_policy": {"global_batch_size": 12, "rollout_batch_size": 40, "lora": {"r": 8}}},
            "train_policy.rollout_batch_size: 40 is no multiple of global_batch_size 12, so its minibatches would "
            "differ in size. Nearest: 36 or 48.",
        ),
        (
            {"train_reward_model": {"schedule": {"max_steps": 100, "eval_steps": 200}, "lora": {"r": 8}}},
            "train_reward_model.schedule.eval_steps: 200 would never evaluate: the run has 100 steps (max_steps).",
        ),
        (
            {"train_policy": {"schedule": {"max_steps": 100, "save_steps": 400}, "lora": {"r": 8}}},
            "train_policy.schedule.save_steps: 400 would never save: the run has 100 steps (max_steps).",
        ),
        (
            {"train_policy": {"evaluation_prompt_length": 512, "lora": {"r": 8}}},
            "train_policy.evaluation_prompt_length: 512 is not 1024, by which the policy is judged",
        ),
        (
            {"evaluate_reward_model": {"max_length": 512}},
            "evaluate_reward_model.max_length: 512 is below train_reward_model.max_length 2048",
        ),
        (
            {"train_reward_model": {"max_length": 512, "lora": {"r": 8}}},
            "train_policy.max_completion_length: prompt 1024 plus completion 256 is 1280 tokens; the reward model was "
            "trained on at most 512",
        ),
        (
            {"train_policy": {"max_completion_length": 300, "lora": {"r": 8}}},
            "evaluate_policy.max_completion_length: 256 cuts off what the policy was trained to write in 300 tokens",
        ),
        (
            {"build_base_model": {"max_position_embeddings": 1024}},
            "train_reward_model.max_length: 2048 exceeds build_base_model.max_position_embeddings 1024.",
        ),
        (
            {"train_reward_model": {"lora": {"r": 65}}},
            "train_reward_model.lora.r: 65 exceeds 64, the narrowest linear layer of build_base_model",
        ),
        (
            {"evaluate_reward_model": {"suites": [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}]}},
            "evaluate_reward_model.suites: the name `a` is given 2 times.",
        ),
        (
            {"evaluate_reward_model": {"suites": [{"name": "test", "path": "x"}]}},
            "evaluate_reward_model.suites: the name `test` belongs to the test pairs",
        ),
        (
            {"evaluate_reward_model": {"suites": [{"name": "rb", "hub_id": "org/data", "path": "*.parquet"}]}},
            "evaluate_reward_model.suites.0: hub_id org/data needs a `revision`",
        ),
        (
            {"filter_dataset": {"polarity": {"reference_reward_model": {"hub_id": "org/judge"}}}},
            "filter_dataset.polarity.reference_reward_model: hub_id org/judge needs a `revision`",
        ),
        (
            {"filter_dataset": {"polarity": {"reference_reward_model": {}}}},
            "filter_dataset.polarity.reference_reward_model: neither hub_id nor path is given.",
        ),
        (
            {"tracking": {"prefect_port": 5000, "mlflow_port": 5000}},
            "tracking.mlflow_port: 5000 is prefect_port too, and two servers cannot share a port.",
        ),
        (
            {"build_base_model": {"num_attention_heads": 3}},
            "build_base_model: num_attention_heads 3 is no multiple of num_key_value_heads 2.",
        ),
    ],
)
def test_an_impossible_combination_is_refused_with_its_numbers(
    tmp_path: Path, sections: dict[str, object], expected: str
) -> None:
    found = mistakes(tmp_path, **sections)
    assert any(line.startswith(expected) for line in found), found


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"tokenizer_file": "x.tiktoken", "build_base_model": {"vocabulary_size": None}},
        {"train_policy": {"num_iterations": 4, "schedule": {"save_steps": 10}, "lora": {"r": 8}}},
        {"train_policy": {"global_batch_size": 12, "rollout_batch_size": 36, "lora": {"r": 8}}},
        {"train_policy": {"global_batch_size": 12, "num_generations": 6, "lora": {"r": 8}}},
        {"train_reward_model": {"schedule": {"max_steps": 100, "eval_steps": 30, "save_steps": 40}, "lora": {"r": 64}}},
        {"train_reward_model": {"schedule": {"max_steps": 100, "eval_steps": 20, "save_steps": 5}, "lora": {"r": 64}}},
        {"evaluate_policy": {"max_completion_length": 512}},
        {"train_sft": {}},
        {"filter_dataset": {"policy_prompt_fraction": 0, "policy_eval_prompt_fraction": 0}},
        {"tracking": {"prefect_port": 0, "mlflow_port": 0}},
        {"tracking": {"prefect_port": 5000}},
        {"gpu_profile": {**PROFILE, **DIVIDED}},
        {"train_policy": {"rollout_engine": "vllm", "vllm_gpus": 1, "lora": {"r": 8}}, "gpu_profile": TWO_GPUS},
        {"tracking": {"prefect_port": 5000, "prefect_api_url": "http://host:4200/api"}},
    ],
)
def test_a_combination_just_inside_the_rules_loads(tmp_path: Path, sections: dict[str, object]) -> None:
    assert mistakes(tmp_path, **sections) == []


def test_several_broken_rules_are_reported_together(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        build_base_model=None,
        evaluate_reward_model={"max_length": 512},
        train_policy={"global_batch_size": 10},
    )
    assert len(found) == 3
