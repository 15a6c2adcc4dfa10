"""A key that is too narrow reuses wrong work; one that is too wide repeats hours."""

import hashlib
import math

import pytest

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig, SuiteFile
from containers.contracts.configs.evaluate_sets import EvaluateSetsConfig
from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.parts.judges import LanguageModelJudge
from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS
from containers.contracts.configs.parts.rewards import ExactTerm
from containers.contracts.configs.parts.training import OptimizerSettings
from containers.contracts.configs.stages import StageConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.configs.write_report import WriteReportConfig
from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.identity import (
    SINGLE_BATCH,
    config_profile,
    identity_key,
    stage_batch,
    stage_profile,
)
from containers.contracts.names import StageName
from containers.contracts.spec import StageInput
from tests.unit.factories.stage_keys import stage_key

PROFILE = GpuProfile(name="cpu", num_gpus=0, precision="float32")
BATCH = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=1, gradient_accumulation_steps=2)
INPUTS = (StageInput(name="pairs", path="/a", digest="sha256:1"), StageInput(name="start_model", path="/b", digest="x"))


def _key(**changes: object) -> str:
    arguments = {"seed": 1, "inputs": INPUTS, "code_digest": "sha256:c", "profile": PROFILE, "batch": BATCH}
    config = changes.pop("config", TrainSftConfig())
    return stage_key(config, **{**arguments, **changes})  # type: ignore[arg-type]


def test_the_same_work_has_the_same_key_wherever_its_inputs_lie_and_in_whatever_order_they_come() -> None:
    moved = tuple(item.model_copy(update={"path": "/elsewhere", "origin": "other"}) for item in reversed(INPUTS))
    assert _key(inputs=moved) == _key()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"code_digest": "sha256:d"},
        {"inputs": (INPUTS[0].model_copy(update={"digest": "sha256:2"}), INPUTS[1])},
        {"config": TrainSftConfig(optimizer=OptimizerSettings(learning_rate=2e-5))},
        {"config": EvaluateRewardModelConfig()},
        {"batch": BATCH.model_copy(update={"per_device_batch_size": 2, "gradient_accumulation_steps": 4})},
        {"profile": PROFILE.model_copy(update={"num_threads": 2})},
    ],
)
def test_whatever_can_change_a_number_changes_the_key(change: dict[str, object]) -> None:
    assert _key(**change) != _key()


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"shm_size_gib": 9}, {"host_memory_gib": 3}, {"host_memory_gib": "unlimited"}]
)
def test_limits_that_change_no_number_leave_the_key_alone(change: dict[str, object]) -> None:
    assert _key(profile=PROFILE.model_copy(update=change)) == _key()


def test_a_suite_counts_by_content_and_not_by_path() -> None:
    here, there = (EvaluateRewardModelConfig(suites=(SuiteFile(name="a", path=path),)) for path in ("x", "y"))
    assert _key(config=here) == _key(config=there)


def test_another_certificate_of_the_same_model_does_not_train_the_policy_again() -> None:
    certificate = INPUTS[0].model_copy(update={"name": "certificate", "digest": "sha256:c"})
    assert _key(config=TrainPolicyConfig(), inputs=(*INPUTS, certificate)) == _key(config=TrainPolicyConfig())


def test_how_long_prompts_are_judged_later_does_not_train_the_policy_again() -> None:
    assert _key(config=TrainPolicyConfig(evaluation_prompt_length=64)) == _key(config=TrainPolicyConfig())


def test_a_stage_whose_result_does_not_depend_on_the_hardware_has_one_key_on_every_profile() -> None:
    profiles = (
        GpuProfile(name="cpu", num_gpus=0, precision="float32", num_threads=1),
        GpuProfile(name="7x48gb", num_gpus=7, num_processes=7, gpu_memory_gib=48, num_threads=8),
    )

    def keys(config: StageConfig, stage: StageName) -> set[str]:
        return {
            stage_key(
                config,
                seed=0,
                inputs=(),
                code_digest="sha256:1",
                profile=stage_profile(profile, stage),
                batch=SINGLE_BATCH,
            )
            for profile in profiles
        }

    assert len(keys(FilterDatasetConfig(), StageName.FILTER_DATASET)) == 1
    assert len(keys(WriteReportConfig(), StageName.WRITE_REPORT)) == 1
    assert len(keys(TrainRewardModelConfig(), StageName.TRAIN_REWARD_MODEL)) == 2


def test_how_ranks_divide_a_model_is_part_of_the_keys_of_the_trainings_that_do_and_of_nothing_else() -> None:
    whole = GpuProfile(name="8x80gb", num_gpus=8, num_processes=8, gpu_memory_gib=80)
    divided = whole.model_copy(update={"distribution": "fsdp"})
    for config, stage, differs in (
        (TrainRewardModelConfig(), StageName.TRAIN_REWARD_MODEL, True),
        (EvaluateRewardModelConfig(), StageName.EVALUATE_REWARD_MODEL, False),
        (TrainPolicyConfig(), StageName.TRAIN_POLICY, False),
    ):
        one, other = (_key(config=config, profile=stage_profile(profile, stage)) for profile in (whole, divided))
        assert (one != other) is differs
        assert GpuProfile.model_validate_json(stage_profile(divided, stage).model_dump_json())


def test_whether_a_policy_is_divided_is_its_own_choice() -> None:
    whole = GpuProfile(name="8x80gb", num_gpus=8, num_processes=8, gpu_memory_gib=80)
    for profile in (whole, whole.model_copy(update={"distribution": "fsdp"})):
        for distribution in ("ddp", "fsdp"):
            part = config_profile(profile, TrainPolicyConfig(distribution=distribution, lora=None))
            assert (part.distribution, part.num_processes) == (distribution, 8)
            assert GpuProfile.model_validate_json(part.model_dump_json()) == part


def test_gpus_that_vllm_has_to_itself_have_no_rank_in_the_policys_training_alone() -> None:
    profile = GpuProfile(name="8x80gb", num_gpus=8, num_processes=8, gpu_memory_gib=80)
    config = TrainPolicyConfig(rollout_engine="vllm", vllm_gpus=2, global_batch_size=96)
    part = config_profile(profile, config)
    assert (part.num_gpus, part.num_processes, part.num_rollout_gpus) == (8, 6, 2)
    assert GpuProfile.model_validate_json(part.model_dump_json()) == part
    batch = stage_batch(config, profile)
    assert (batch.num_processes, batch.global_batch_size) == (6, 96)
    assert config_profile(profile, TrainRewardModelConfig()) == profile
    assert config_profile(profile, TrainPolicyConfig()) == profile


def test_an_evaluation_has_all_gpus_and_one_program_and_sets_have_those_of_their_judge() -> None:
    profile = GpuProfile(name="8x80gb", num_gpus=8, num_processes=8, gpu_memory_gib=80)
    judges = (LanguageModelJudge(path="large", engine="vllm", vllm_gpus=4), ExactTerm())
    part = config_profile(profile, EvaluatePolicyConfig(judges=judges))
    assert (part.num_gpus, part.num_processes, part.num_rollout_gpus) == (8, 1, 7)
    assert GpuProfile.model_validate_json(part.model_dump_json()) == part
    sets = config_profile(profile, EvaluateSetsConfig(judges=judges))
    assert (sets.num_gpus, sets.num_processes, sets.num_rollout_gpus) == (4, 1, 3)
    plain = config_profile(profile, EvaluateSetsConfig(judges=judges[1:]))
    assert (plain.num_gpus, plain.num_rollout_gpus) == (1, 0)
    assert config_profile(PROFILE, EvaluatePolicyConfig(judges=judges)).num_gpus == 0


def test_a_spread_evaluation_has_the_key_that_it_has_on_one_gpu() -> None:
    one, eight = (GpuProfile(name="box", num_gpus=count, num_processes=count, gpu_memory_gib=80) for count in (1, 8))
    for config, is_same in ((EvaluateRewardModelConfig(), True), (TrainRewardModelConfig(), False)):
        keys = {
            stage_key(
                config,
                seed=0,
                inputs=(),
                code_digest="sha256:1",
                profile=config_profile(each, config),
                batch=SINGLE_BATCH,
            )
            for each in (one, eight)
        }
        assert (len(keys) == 1) is is_same


def test_why_auto_took_a_profile_changes_no_key() -> None:
    profile = GpuProfile(name="1x48gb", num_gpus=1)
    told = profile.model_copy(update={"chosen_because": "auto: it was free"})
    config = TrainRewardModelConfig()
    one, other = (
        stage_key(config, seed=0, inputs=(), code_digest="sha256:1", profile=each, batch=SINGLE_BATCH)
        for each in (profile, told)
    )
    assert one == other


def test_a_key_is_the_one_under_which_an_older_store_holds_the_artifact() -> None:
    assert identity_key({"seed": 1, "config": {"b": None, "a": [True, 0.5]}}) == (
        hashlib.sha256(b'{"config": {"a": [true, 0.5], "b": null}, "seed": 1}').hexdigest()
    )


def test_a_value_that_equals_nothing_is_no_part_of_a_key() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        identity_key({"learning_rate": math.nan})


@pytest.mark.parametrize(
    ("num_gpus", "precision", "used", "found"), [(4, "bf16", 4, "bf16"), (0, "float32", 0, "float32")]
)
def test_an_evaluation_uses_all_gpus_and_one_without_none(num_gpus: int, precision: str, used: int, found: str) -> None:
    profile = GpuProfile(
        name="box",
        num_gpus=num_gpus,
        num_processes=max(1, num_gpus),
        precision=precision,  # type: ignore[arg-type]
    )
    judging = stage_profile(profile, StageName.EVALUATE_REWARD_MODEL)
    assert (judging.num_gpus, judging.num_processes, judging.precision) == (used, 1, found)
    filtering = stage_profile(profile, StageName.FILTER_DATASET)
    assert (filtering.num_gpus, filtering.num_processes, filtering.precision) == (0, 1, "float32")
    assert stage_profile(profile, StageName.TRAIN_POLICY) == profile


def test_an_algorithm_counts_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their table is no part of the program, so that a new algorithm trains no policy again."""
    rloo = _key(config=TrainPolicyConfig())
    assert _key(config=TrainPolicyConfig(beta=0.05, parts={"clip_low": 0.2})) == rloo
    assert _key(config=TrainPolicyConfig(parts={"clip_low": 0.1})) != rloo
    changed = POLICY_ALGORITHMS["rloo"].model_copy(update={"beta": 0.07})
    monkeypatch.setitem(POLICY_ALGORITHMS, "rloo", changed)  # type: ignore[arg-type]
    assert _key(config=TrainPolicyConfig()) != rloo
