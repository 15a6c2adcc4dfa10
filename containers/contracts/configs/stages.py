"""Union of the stages' configurations, distinguished by `stage`; each is in its own file."""

from typing import Annotated

from pydantic import Field

from containers.contracts.configs.answer_sets import AnswerSetsConfig
from containers.contracts.configs.build_base_model import BuildBaseModelConfig
from containers.contracts.configs.compare_policies import ComparePoliciesConfig
from containers.contracts.configs.compute_reference import ComputeReferenceConfig
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.configs.evaluate_sets import EvaluateSetsConfig
from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.sample_completions import SampleCompletionsConfig
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.configs.write_report import WriteReportConfig

StageConfig = Annotated[
    FilterDatasetConfig
    | FilterPromptsConfig
    | FilterDemonstrationsConfig
    | BuildBaseModelConfig
    | TrainSftConfig
    | TrainRewardModelConfig
    | EvaluateRewardModelConfig
    | ComputeReferenceConfig
    | TrainDpoConfig
    | TrainPolicyConfig
    | AnswerSetsConfig
    | EvaluateSetsConfig
    | SampleCompletionsConfig
    | EvaluatePolicyConfig
    | ComparePoliciesConfig
    | WriteReportConfig,
    Field(discriminator="stage"),
]
