"""The fields of the forms in Prefect: the keys of a run configuration that users change most."""

from typing import Annotated, TypeAlias

from flows.forms.pipeline import Help, NamesRunConfig, SetsKey, gpu_profiles, stages_to_name
from flows.forms.reward_lines import SetsRewards

_SPLITS = ("dataset.subset", "dataset.split", "dataset.validation_split")
_PROMPT_SPLITS = ("prompts.subset", "prompts.split", "prompts.validation_split")

StartFrom: TypeAlias = Annotated[str, NamesRunConfig()]
SaveAs: TypeAlias = Annotated[
    str | None,
    SetsKey("run.name", help_text="Name of this run, for example `demo-higher-lr`; runs of one name share a folder"),
]
Profile: TypeAlias = Annotated[
    str | None,
    SetsKey("gpu_profile", help_text="The machine that trains: number of GPUs x GB each", choices=gpu_profiles),
]
BaseModelId: TypeAlias = Annotated[
    str | None,
    SetsKey(
        "base_model.hub_id",
        help_text="Model to start from; name its revision too",
        clears=("build_base_model", "tokenizer_file", "base_model.path", "base_model.revision"),
    ),
]
BaseModelRevision: TypeAlias = Annotated[
    str | None, SetsKey("base_model.revision", help_text="Which state of that model")
]
DatasetId: TypeAlias = Annotated[
    str | None,
    SetsKey(
        "dataset.hub_id",
        help_text="Preference data; name its revision and its files too",
        clears=("dataset.revision", "dataset.validation", "dataset.columns", *_SPLITS),
    ),
]
DatasetRevision: TypeAlias = Annotated[str | None, SetsKey("dataset.revision", help_text="Which state of that data")]
TrainFile: TypeAlias = Annotated[
    str | None,
    SetsKey("dataset.train", help_text="Which rows of that data; name it with every other dataset", clears=_SPLITS),
]
ValidationFile: TypeAlias = Annotated[
    str | None, SetsKey("dataset.validation", help_text="Rows that judge the reward model")
]
SampleLimit: TypeAlias = Annotated[int | None, SetsKey("filter_dataset.max_rows")]
RewardModelLearningRate: TypeAlias = Annotated[
    float | None, SetsKey("train_reward_model.optimizer.learning_rate", help_text="For the reward model")
]
RewardModelEpochs: TypeAlias = Annotated[
    float | None,
    SetsKey(
        "train_reward_model.schedule.num_epochs",
        help_text="How often the reward model sees every pair; replaces a number of steps",
        clears=("train_reward_model.schedule.max_steps",),
    ),
]
PromptsId: TypeAlias = Annotated[
    str | None,
    SetsKey(
        "prompts.hub_id",
        help_text="Prompts for the policy, with reference answers if the rewards need them; name revision and file too",
        clears=("prompts.revision", "prompts.validation", "prompts.columns", *_PROMPT_SPLITS),
    ),
]
PromptsRevision: TypeAlias = Annotated[
    str | None, SetsKey("prompts.revision", help_text="Which state of these prompts")
]
PromptsFile: TypeAlias = Annotated[
    str | None,
    SetsKey("prompts.train", help_text="Which rows of them; name it with every other set", clears=_PROMPT_SPLITS),
]
Algorithm: TypeAlias = Annotated[
    str | None, SetsKey("train_policy.algorithm", help_text="All of what its paper says; its parts are settings")
]
Rewards: TypeAlias = Annotated[list[str], SetsRewards()]
NumGenerations: TypeAlias = Annotated[
    int | None, SetsKey("train_policy.num_generations", help_text="They are compared with each other")
]
Beta: TypeAlias = Annotated[
    float | None, SetsKey("train_policy.beta", help_text="Larger keeps the policy nearer to where it started")
]
PolicySteps: TypeAlias = Annotated[
    int | None, SetsKey("train_policy.schedule.max_steps", help_text="How long the policy is trained")
]
MinimumAccuracy: TypeAlias = Annotated[
    float | None,
    SetsKey("gates.reward_model.minimum_accuracy", help_text="The reward model's gate, a share: 0.65 is 65 %"),
]
RewardModelApproval: TypeAlias = Annotated[
    str | None,
    SetsKey(
        "gates.reward_model.approval",
        help_text="Whether a person looks at the reward model's figures before the run goes on; replaces a waiver",
        clears=("gates.reward_model.waive",),
    ),
]
MinimumRewardGain: TypeAlias = Annotated[
    float | None, SetsKey("gates.policy.minimum_reward_gain", help_text="The policy's gate, in units of the score")
]
Seed: TypeAlias = Annotated[int | None, SetsKey("run.seed")]
Until: TypeAlias = Annotated[
    str | None,
    SetsKey("run.until", help_text="Last stage of this run, before the report", choices=stages_to_name),
]
AgainFrom: TypeAlias = Annotated[
    str | None,
    SetsKey(
        "run.again_from",
        help_text="Run this stage and those after it again; without it, every finished stage is reused",
        choices=stages_to_name,
    ),
]
MoreSettings: TypeAlias = Annotated[
    list[str],
    Help(
        "Any other setting, one line each as `section.key=value`, for example `train_policy.beta=0.1`; these win. "
        "Wrong ones are refused before anything starts, with the right names."
    ),
]
