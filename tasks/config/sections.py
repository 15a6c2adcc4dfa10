"""Every key of a run and its sections, one for each stage; the rules between keys are in `tasks.config.rules`."""

from pathlib import Path

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.configs.answer_sets import AnswerSetsConfig, StandardSet
from containers.contracts.configs.build_base_model import BuildBaseModelConfig
from containers.contracts.configs.compute_reference import ComputeReferenceConfig
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig, SuiteFile
from containers.contracts.configs.evaluate_sets import EvaluateSetsConfig
from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.parts.evidence import evidence_judges
from containers.contracts.configs.parts.judges import EndpointJudge, Judge, JudgingModel, PeopleJudge
from containers.contracts.configs.parts.rewards import FurtherRewardModel, RewardModelTerm
from containers.contracts.configs.sample_completions import SampleCompletionsConfig
from containers.contracts.configs.stages import StageConfig
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.configs.write_report import WriteReportConfig
from containers.contracts.hardware import GIB, GpuProfile
from containers.contracts.names import OVER_RUNS, StageName
from containers.contracts.pipeline import STAGE_FACTS
from tasks.config.gates import Gates
from tasks.config.retrain import RetrainRules
from tasks.config.run_sections import RunSection, RuntimeSection, TrackingSection
from tasks.config.sources import (
    DatasetSource,
    ModelSource,
    RewardModelSource,
    whole_demonstration_config,
    whole_filter_config,
    whole_prompt_config,
)


class RunTree(Frozen):
    """A run as the user describes it; each key is checked alone. Relative paths start at the current directory."""

    run: RunSection = Field(description="Name and folders of the run, and which stages it does")
    runtime: RuntimeSection = Field(RuntimeSection(), description="How the stages are started")
    gpu_profile: GpuProfile = Field(description="A name in configs/gpu_profiles, or the profile itself")
    base_model: ModelSource | None = Field(None, description="The model to start from: hub id and revision, or path")
    build_base_model: BuildBaseModelConfig | None = Field(
        None, description="Build a small model with random weights instead of starting from `base_model`"
    )
    tokenizer_file: Path | None = Field(
        None, description="For build_base_model: a tiktoken rank file; null: a tokenizer is trained on the pairs"
    )
    dataset: DatasetSource | None = Field(
        None,
        description="Where the preference rows come from; null: the run has no reward model, and trains the policy on "
        "other rewards and `prompts`. Where no reward is the reward model, none is trained",
    )
    filter_dataset: FilterDatasetConfig = Field(
        FilterDatasetConfig(), description="Which rows become preference pairs, and how they are split"
    )
    prompts: DatasetSource | None = Field(
        None,
        description="Where the policy's prompts come from, with reference answers if the rewards need them; null: "
        "`filter_dataset` sets some of its prompts aside",
    )
    filter_prompts: FilterPromptsConfig = Field(
        FilterPromptsConfig(), description="Which rows of `prompts` train and judge the policy"
    )
    demonstrations: DatasetSource | None = Field(
        None,
        description="Where the conversations for `train_sft` come from; null: it learns completions of the pairs",
    )
    filter_demonstrations: FilterDemonstrationsConfig = Field(
        FilterDemonstrationsConfig(), description="Which rows of `demonstrations` are learnt"
    )
    train_sft: TrainSftConfig | None = Field(None, description="Supervised fine-tuning first; null: left out")
    reward_model: RewardModelSource | None = Field(
        None,
        description="A reward model that was trained elsewhere, whole or as an adapter, to judge and use; null: one is "
        "trained here",
    )
    train_reward_model: TrainRewardModelConfig = Field(
        TrainRewardModelConfig(), description="The reward model, trained on the pairs"
    )
    evaluate_reward_model: EvaluateRewardModelConfig = Field(
        EvaluateRewardModelConfig(), description="The reward model's certificate: suites, length bias, score parity"
    )
    compute_reference: ComputeReferenceConfig = Field(
        ComputeReferenceConfig(), description="The pairs under the model from which `train_dpo` starts"
    )
    train_dpo: TrainDpoConfig | None = Field(
        None, description="The policy, trained on the pairs themselves in place of `train_policy`; null: left out"
    )
    train_policy: TrainPolicyConfig = Field(
        TrainPolicyConfig(), description="The policy, trained on rewards of what it writes"
    )
    answer_sets: AnswerSetsConfig | None = Field(
        None,
        description="Standard sets that the model before fine-tuning, the start model and the policy answer: GSM8K, "
        "IFEval, refusals …; null: left out",
    )
    evaluate_sets: EvaluateSetsConfig = Field(
        EvaluateSetsConfig(), description="The answers to `answer_sets`, judged, with the models side by side"
    )
    sample_completions: SampleCompletionsConfig = Field(
        SampleCompletionsConfig(), description="What policy and reference policy write on held-out prompts"
    )
    evaluate_policy: EvaluatePolicyConfig = Field(
        EvaluatePolicyConfig(), description="Policy against reference policy on held-out prompts"
    )
    write_report: WriteReportConfig = Field(WriteReportConfig(), description="The report at the end")
    gates: Gates = Field(Gates(), description="The rules for the models before the pipeline goes on")
    retrain: RetrainRules = Field(RetrainRules(), description="The rules by which a retrained model becomes champion")
    tracking: TrackingSection = Field(TrackingSection(), description="Where curves and runs are shown")

    @property
    def output_dir(self) -> Path:
        """Folder of everything that this run writes."""
        return self.run.output_dir or Path("outputs") / self.run.name

    @property
    def store_dir(self) -> Path:
        """Folder of the artifacts, shared with the runs beside this one."""
        return self.run.store_dir or self.output_dir.parent / "store"

    @property
    def verify_whole_up_to_bytes(self) -> int | None:
        """Size from which files of a reused artifact are sampled; None: never."""
        limit = self.run.verify_whole_up_to_gib
        return None if limit is None else int(limit * GIB)

    def seed_of(self, stage: StageName) -> int:
        """Seed of the stage."""
        own = {"policy": self.run.policy_seed, "reward_model": self.run.reward_model_seed}.get(
            STAGE_FACTS[stage].trains or ""
        )
        return self.run.seed if own is None else own

    @property
    def image(self) -> str:
        """Name of the stage image for the Docker runtime."""
        return self.runtime.image or ("rlhf-stage:gpu" if self.gpu_profile.num_gpus else "rlhf-stage:cpu")

    @property
    def timeouts_s(self) -> dict[StageName, float | None]:
        """Seconds that each stage may take; None without limit."""
        return {stage: self.runtime.timeout_s.of(stage) for stage in StageName}

    @property
    def stages(self) -> tuple[StageName, ...]:
        """The stages of this run in order, up to `run.until`; the report is always among them."""
        wanted = self.possible_stages
        if self.run.until in wanted:
            wanted = (*wanted[: wanted.index(self.run.until) + 1], StageName.WRITE_REPORT)
        return wanted

    @property
    def needs_start_model(self) -> bool:
        """Whether the run trains a model; false if it only judges a reward model that was trained elsewhere."""
        return self.reward_model is None or self.run.until is not StageName.EVALUATE_REWARD_MODEL

    @property
    def has_pairs(self) -> bool:
        """Whether the run reads preferences; without them it has no reward model."""
        return self.dataset is not None

    @property
    def has_policy(self) -> bool:
        """Whether the run has prompts for a policy; with demonstrations alone it ends with train_sft."""
        return self.has_pairs or self.prompts is not None

    @property
    def has_reward_model(self) -> bool:
        """Whether a reward model takes part: a policy is trained or judged by it, or the run is about it."""
        rewards = (self.policy_on_rewards or self.evaluate_policy).rewards
        return self.has_pairs and (
            any(isinstance(term, RewardModelTerm) for term in rewards)
            or self.reward_model is not None
            or self.run.until in (StageName.TRAIN_REWARD_MODEL, StageName.EVALUATE_REWARD_MODEL)
        )

    @property
    def trains_reward_model(self) -> bool:
        """Whether the run trains a reward model of its own."""
        return self.has_reward_model and self.reward_model is None

    @property
    def sources(self) -> tuple[DatasetSource, ...]:
        """Where rows come from: preferences, prompts, demonstrations."""
        return tuple(source for source in (self.dataset, self.prompts, self.demonstrations) if source is not None)

    @property
    def pair_filters(self) -> FilterDatasetConfig:
        """The filters of preferences. Beside a prompt set they set no prompt aside for the policy.

        If the policy is trained on the pairs, all prompts that they set aside judge it, unless the run says how many.
        """
        filters = self.filter_dataset
        if self.prompts is not None:
            filters = filters.model_copy(update={"policy_prompt_fraction": 0.0})
        by_pairs = self.train_dpo is not None and filters.policy_prompt_fraction > 0
        if by_pairs and filters.policy_eval_prompt_fraction is None:
            return filters.model_copy(update={"policy_eval_prompt_fraction": 1.0})
        return filters

    @property
    def policy_on_rewards(self) -> TrainPolicyConfig | None:
        """The training of the policy on rewards; None if it is trained on the pairs, or there is no policy."""
        return self.train_policy if self.train_dpo is None and self.has_policy else None

    @property
    def further_reward_models(self) -> tuple[FurtherRewardModel, ...]:
        """The reward models that give the policy's rewards together with the run's own."""
        terms = () if self.policy_on_rewards is None else self.policy_on_rewards.rewards
        return tuple(other for term in terms if isinstance(term, RewardModelTerm) for other in term.others)

    @property
    def judging_models(self) -> tuple[JudgingModel, ...]:
        """The models from elsewhere that judge the policy."""
        judges = self.evaluate_policy.judges if self.has_policy else ()
        return tuple(judge for judge in judges if isinstance(judge, JudgingModel))

    @property
    def asked_judges(self) -> tuple[EndpointJudge, ...]:
        """The judges behind an address, which no stage can ask."""
        judges = self.evaluate_policy.judges if self.has_policy else ()
        return tuple(judge for judge in judges if isinstance(judge, EndpointJudge))

    @property
    def people_judges(self) -> tuple[PeopleJudge, ...]:
        """The judges that are people."""
        judges = self.evaluate_policy.judges if self.has_policy else ()
        return tuple(judge for judge in judges if isinstance(judge, PeopleJudge))

    @property
    def judges_of_evidence(self) -> tuple[Judge, ...]:
        """The judges that look at the policy while it trains on rewards, the one that decides first."""
        policy = self.policy_on_rewards
        if policy is None or policy.evidence is None:
            return ()
        return evidence_judges(policy.evidence, self.evaluate_policy.judges, policy.rewards)

    @property
    def sets(self) -> tuple[StandardSet, ...]:
        """The standard sets on which the models are measured."""
        return () if self.answer_sets is None else self.answer_sets.sets

    @property
    def held_out(self) -> tuple[SuiteFile | StandardSet, ...]:
        """The data that judge a model of the run and whose prompts must not train one."""
        return (*self.evaluate_reward_model.suites, *(one for one in self.sets if one.has_rows))

    @property
    def policy_stage(self) -> StageName:
        """The stage that trains the policy."""
        return StageName.TRAIN_POLICY if self.train_dpo is None else StageName.TRAIN_DPO

    @property
    def prompt_stage(self) -> StageName:
        """The stage that makes the policy's prompts."""
        return StageName.FILTER_DATASET if self.prompts is None else StageName.FILTER_PROMPTS

    @property
    def possible_stages(self) -> tuple[StageName, ...]:
        """The stages of this run in order, if nothing ends it early."""
        return tuple(stage for stage in StageName if self.takes_part(stage))

    def takes_part(self, stage: StageName) -> bool:
        """Whether the run has the stage, if nothing ends it early."""
        if stage in (StageName.BUILD_BASE_MODEL, StageName.TRAIN_SFT):
            return self.needs_start_model and getattr(self, stage.value) is not None
        return {
            StageName.FILTER_PROMPTS: self.prompts is not None,
            StageName.FILTER_DEMONSTRATIONS: self.demonstrations is not None,
            StageName.FILTER_DATASET: self.has_pairs,
            StageName.EVALUATE_REWARD_MODEL: self.has_reward_model,
            StageName.TRAIN_REWARD_MODEL: self.trains_reward_model,
            StageName.TRAIN_DPO: self.train_dpo is not None,
            StageName.COMPUTE_REFERENCE: self.train_dpo is not None and self.train_dpo.method.has_reference,
            StageName.TRAIN_POLICY: self.policy_on_rewards is not None,
            StageName.SAMPLE_COMPLETIONS: self.has_policy,
            StageName.EVALUATE_POLICY: self.has_policy,
            StageName.ANSWER_SETS: self.answer_sets is not None,
            StageName.EVALUATE_SETS: self.answer_sets is not None,
        }.get(stage, stage not in OVER_RUNS)

    @property
    def _policy_evaluation(self) -> EvaluatePolicyConfig:
        """The policy's evaluation with the rewards that trained it, if any did."""
        trained = self.policy_on_rewards
        update = {"rewards_trained_it": False} if trained is None else {"rewards": trained.rewards}
        return self.evaluate_policy.model_copy(update=update)

    def stage_config(self, stage: StageName) -> StageConfig | None:
        """Configuration of the stage's program; None if the run lacks the stage, or it has no program."""
        if not self.takes_part(stage) or stage is StageName.CHECK_SYSTEM:
            return None
        if stage is StageName.FILTER_DATASET and self.dataset is not None:
            return whole_filter_config(self.pair_filters, self.dataset, self.held_out)
        if stage is StageName.FILTER_PROMPTS and self.prompts is not None:
            policy = self.policy_on_rewards
            rewards = () if policy is None else policy.rewards
            needs_answer = any(one.needs_answer for one in (*rewards, *self.evaluate_policy.judges))
            return whole_prompt_config(self.filter_prompts, self.prompts, self.held_out, needs_answer=needs_answer)
        if stage is StageName.FILTER_DEMONSTRATIONS and self.demonstrations is not None:
            return whole_demonstration_config(self.filter_demonstrations, self.demonstrations, self.held_out)
        if stage is StageName.COMPUTE_REFERENCE and self.train_dpo is not None:
            return self.compute_reference.for_training(self.train_dpo)
        if stage is StageName.TRAIN_POLICY:
            length, evidence = self.evaluate_policy.max_prompt_length, self.train_policy.evidence
            if evidence is not None:
                evidence = evidence.model_copy(update={"judges": self.judges_of_evidence})
            return self.train_policy.model_copy(update={"evaluation_prompt_length": length, "evidence": evidence})
        if stage is StageName.EVALUATE_POLICY:
            return self._policy_evaluation
        if stage is StageName.SAMPLE_COMPLETIONS:
            trained = self.policy_on_rewards or self.evaluate_policy
            sampling = self.sample_completions.for_evaluation(self.evaluate_policy)
            return sampling.model_copy(update={"enable_thinking": trained.enable_thinking})
        if stage is StageName.ANSWER_SETS and self.answer_sets is not None:
            thinks = (self.policy_on_rewards or self.evaluate_policy).enable_thinking
            own = {"enable_thinking": thinks, "rollout_engine": self.evaluate_policy.rollout_engine}
            return self.answer_sets.model_copy(update={**own, "sets": tuple(one.for_programs for one in self.sets)})
        if stage is StageName.EVALUATE_SETS and self.answer_sets is not None:
            return self.evaluate_sets.for_run(self.answer_sets, self._policy_evaluation)
        section: StageConfig = getattr(self, stage.value)
        return section
