"""The pipeline is declared once: in the order of the names, each stage reading what is made before it."""

from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.answer_sets import AnswerSetsConfig, StandardSet
from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.parts.rewards import ExactTerm
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import CONTAINER_STAGES, OVER_RUNS, StageName
from containers.contracts.pipeline import JUDGED_BY, STAGE_FACTS, Devices
from containers.contracts.spec import StageInput
from flows.rlhf import TASKS
from tasks.config.run import RunConfig
from tasks.config.run_sections import StageTimeouts
from tasks.config.sources import DatasetSource, ModelSource
from tasks.pipeline.stages import OF_THE_POLICY, STAGES, Made, Stage, required_config, walk
from tasks.plan.run_plan import _PLANNERS
from tests.unit.factories.run_config import run_config

JUDGING = (StageName.SAMPLE_COMPLETIONS, StageName.EVALUATE_POLICY)
BETWEEN_CHECK_AND_REPORT = [
    stage for stage in CONTAINER_STAGES if stage is not StageName.WRITE_REPORT and stage not in OVER_RUNS
]


class Names:
    """Resolves every stage to its own name, and a named model to where it lies."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run

    def made(self, stage: Stage, made: Made) -> str:
        assert set(stage.read_in(self.run)) <= {*made, "checked"}, "a stage reads what is not there yet"
        return stage.name

    def named(self, stage: Stage, source: ModelSource) -> StageInput:
        return StageInput(name=stage.role, path=source.path or "", digest="sha256:0", origin="named")


def walked(tmp_path: Path, **changes: Any) -> tuple[list[StageName], dict[str, Any]]:
    run = run_config("one", output_dir=tmp_path, store_dir=tmp_path / "store").model_copy(update=changes)
    made: dict[str, Any] = {}
    return [stage.name for stage, _ in walk(run, Names(run), made=made)], made


def test_the_table_has_every_stage_between_check_and_report_in_order() -> None:
    assert [stage.name for stage in STAGES] == BETWEEN_CHECK_AND_REPORT
    assert list(TASKS) == BETWEEN_CHECK_AND_REPORT
    assert list(STAGE_FACTS) == list(StageName)
    assert {stage for stage, facts in STAGE_FACTS.items() if facts.devices is not Devices.NONE} <= {
        *_PLANNERS,
        *OVER_RUNS,
    }
    assert set(StageTimeouts.model_fields) == {"default", *CONTAINER_STAGES}


def test_a_run_walks_the_stages_that_it_has(tmp_path: Path) -> None:
    names, made = walked(tmp_path)
    absent = (
        StageName.FILTER_PROMPTS,
        StageName.FILTER_DEMONSTRATIONS,
        StageName.TRAIN_SFT,
        StageName.COMPUTE_REFERENCE,
        StageName.TRAIN_DPO,
        StageName.ANSWER_SETS,
        StageName.EVALUATE_SETS,
    )
    assert names == [stage for stage in BETWEEN_CHECK_AND_REPORT if stage not in absent]
    assert made["prompts"] == StageName.FILTER_DATASET
    assert made["start_model"] == StageName.BUILD_BASE_MODEL
    assert made["verdict"] == StageName.EVALUATE_POLICY


def test_pairs_train_the_policy_in_place_of_rewards(tmp_path: Path) -> None:
    names, made = walked(tmp_path, train_dpo=TrainDpoConfig())
    assert StageName.TRAIN_POLICY not in names
    assert names[-4:] == [StageName.COMPUTE_REFERENCE, StageName.TRAIN_DPO, *JUDGING]
    assert made["policy"] == StageName.TRAIN_DPO
    names, made = walked(tmp_path, train_dpo=TrainDpoConfig(loss="simpo"))
    assert names[-3:] == [StageName.TRAIN_DPO, *JUDGING] and "reference" not in made


def test_a_prompt_set_gives_the_prompts_of_the_policy(tmp_path: Path) -> None:
    names, made = walked(tmp_path, prompts=DatasetSource(train="prompts.jsonl"))
    assert names[:2] == [StageName.FILTER_DATASET, StageName.FILTER_PROMPTS]
    assert (made["pairs"], made["prompts"]) == (StageName.FILTER_DATASET, StageName.FILTER_PROMPTS)


def test_fine_tuning_learns_demonstrations_where_there_are_any_and_these_know_what_judges(tmp_path: Path) -> None:
    source, sft = DatasetSource(train="talks.jsonl"), TrainSftConfig()
    run = run_config("one", output_dir=tmp_path, store_dir=tmp_path / "store")
    run = run.model_copy(update={"train_sft": sft})
    reads = {stage.name: stage.read_in(run) for stage in STAGES}
    assert reads[StageName.TRAIN_SFT] == ("pairs", "start_model")
    run = run.model_copy(update={"demonstrations": source, "prompts": DatasetSource(train="prompts.jsonl")})
    reads = {stage.name: stage.read_in(run) for stage in STAGES}
    assert reads[StageName.FILTER_DEMONSTRATIONS] == ("checked", "pairs", "prompts")
    assert reads[StageName.BUILD_BASE_MODEL] == ("pairs", "demonstrations")
    assert reads[StageName.TRAIN_SFT] == ("demonstrations", "start_model")
    names, made = walked(tmp_path, demonstrations=source, train_sft=sft, dataset=None)
    assert names[:3] == [StageName.FILTER_DEMONSTRATIONS, StageName.BUILD_BASE_MODEL, StageName.TRAIN_SFT]
    assert "pairs" not in made


def test_a_run_without_preferences_reads_nothing_that_is_made_of_them(tmp_path: Path) -> None:
    policy = TrainPolicyConfig(rewards=(ExactTerm(),))
    names, made = walked(tmp_path, dataset=None, prompts=DatasetSource(train="prompts.jsonl"), train_policy=policy)
    assert names == [
        StageName.FILTER_PROMPTS,
        StageName.BUILD_BASE_MODEL,
        StageName.TRAIN_POLICY,
        *JUDGING,
    ]
    assert set(made) == {"completions", "prompts", "start_model", "policy", "verdict"}


def test_a_reward_model_that_nothing_uses_is_not_trained(tmp_path: Path) -> None:
    changes = {
        "prompts": DatasetSource(train="prompts.jsonl"),
        "train_policy": TrainPolicyConfig(rewards=(ExactTerm(),)),
    }
    names, made = walked(tmp_path, **changes)
    assert names == [
        StageName.FILTER_DATASET,
        StageName.FILTER_PROMPTS,
        StageName.BUILD_BASE_MODEL,
        StageName.TRAIN_POLICY,
        *JUDGING,
    ]
    assert not {"reward_model", "gate"} & set(made)
    until = run_config("one", output_dir=tmp_path, store_dir=tmp_path / "store").run.model_copy(
        update={"until": StageName.EVALUATE_REWARD_MODEL}
    )
    assert StageName.TRAIN_REWARD_MODEL in walked(tmp_path, **changes, run=until)[0]
    assert StageName.EVALUATE_REWARD_MODEL in walked(tmp_path, **changes, reward_model=ModelSource(path="scorer"))[0]
    assert StageName.EVALUATE_REWARD_MODEL in walked(tmp_path, train_dpo=TrainDpoConfig())[0]


def test_standard_sets_are_answered_by_every_model_of_the_run_and_awaited_by_the_policys_gate(tmp_path: Path) -> None:
    sets = AnswerSetsConfig(sets=(StandardSet(name="sums", kind="math", path="sums.jsonl"),))
    names, made = walked(tmp_path, answer_sets=sets)
    assert names[-4:] == [StageName.ANSWER_SETS, StageName.EVALUATE_SETS, *JUDGING]
    assert "before_model" not in made and made["set_results"] == StageName.EVALUATE_SETS
    names, made = walked(tmp_path, answer_sets=sets, train_sft=TrainSftConfig())
    assert (made["before_model"], made["start_model"]) == (StageName.BUILD_BASE_MODEL, StageName.TRAIN_SFT)
    run = run_config("one", output_dir=tmp_path, store_dir=tmp_path / "store")
    run = run.model_copy(update={"answer_sets": sets, "train_sft": TrainSftConfig()})
    reads = {stage.name: stage.read_in(run) for stage in STAGES}
    assert reads[StageName.ANSWER_SETS] == ("before_model", "start_model", "policy")
    assert "set_results" in reads[StageName.EVALUATE_POLICY]


def test_named_models_stand_in_the_places_of_what_would_be_made(tmp_path: Path) -> None:
    base, scorer = ModelSource(path="base"), ModelSource(path="scorer")
    names, made = walked(tmp_path, build_base_model=None, base_model=base, reward_model=scorer)
    assert StageName.BUILD_BASE_MODEL not in names and StageName.TRAIN_REWARD_MODEL not in names
    assert (made["start_model"].path, made["reward_model"].path) == ("base", "scorer")


def test_the_part_of_the_policy_goes_on_from_what_is_there(tmp_path: Path) -> None:
    run = run_config("one", output_dir=tmp_path, store_dir=tmp_path / "store")
    made: dict[str, Any] = dict.fromkeys(("prompts", "start_model", "reward_model", "gate"), "champion's")
    assert [stage.name for stage, _ in walk(run, Names(run), made=made, stages=OF_THE_POLICY)] == [
        StageName.TRAIN_POLICY,
        *JUDGING,
    ]
    assert made["reward_model"] == "champion's"


def test_a_stage_that_takes_no_part_has_no_configuration(tmp_path: Path) -> None:
    run = run_config("one", output_dir=tmp_path, store_dir=tmp_path / "store")
    with pytest.raises(LookupError, match="train_sft takes no part"):
        required_config(run, StageName.TRAIN_SFT)
    for stage in BETWEEN_CHECK_AND_REPORT:
        if run.takes_part(stage):
            assert required_config(run, stage).stage == stage


def test_what_trains_has_all_ranks_and_what_judges_has_all_gpus() -> None:
    trained = {facts.trains: facts.devices for facts in STAGE_FACTS.values() if facts.trains is not None}
    assert set(trained.values()) == {Devices.ALL_RANKS}
    assert {STAGE_FACTS[stage].devices for stage in JUDGED_BY.values()} == {Devices.ALL_GPUS}
    assert set(trained) == set(JUDGED_BY) == {"reward_model", "policy"}


def test_beside_a_prompt_set_no_pair_is_set_aside_and_answers_are_required_where_a_reward_needs_them(
    tmp_path: Path,
) -> None:
    prompts = DatasetSource(train="prompts.jsonl")
    base = run_config("one", output_dir=tmp_path, store_dir=tmp_path / "store")
    policy = TrainPolicyConfig(rewards=(ExactTerm(type="exact"),))
    run = base.model_copy(update={"prompts": prompts, "train_policy": policy})
    pairs, asked = (required_config(run, stage) for stage in (StageName.FILTER_DATASET, StageName.FILTER_PROMPTS))
    assert isinstance(pairs, FilterDatasetConfig) and isinstance(asked, FilterPromptsConfig)
    assert (pairs.policy_prompt_fraction, asked.require_answer) == (0, True)
    other = required_config(base.model_copy(update={"prompts": prompts}), StageName.FILTER_PROMPTS)
    assert isinstance(other, FilterPromptsConfig) and other.require_answer is False
