"""The names that every layer shares: stages, and the files and folders on both sides of the wall."""

from enum import StrEnum


class StageName(StrEnum):
    """A step of the pipeline. The value is also the YAML key, the file in `tasks/`, the program in
    `containers/stages/`, the MLflow run name, the artifact folder and the container label."""

    CHECK_SYSTEM = "check_system"
    FILTER_DATASET = "filter_dataset"
    BUILD_BASE_MODEL = "build_base_model"
    TRAIN_SFT = "train_sft"
    TRAIN_REWARD_MODEL = "train_reward_model"
    EVALUATE_REWARD_MODEL = "evaluate_reward_model"
    TRAIN_POLICY = "train_policy"
    EVALUATE_POLICY = "evaluate_policy"
    WRITE_REPORT = "write_report"


# check_system runs in the orchestrator; every other stage is a program behind the wall.
CONTAINER_STAGES = tuple(stage for stage in StageName if stage is not StageName.CHECK_SYSTEM)

# Holds the process id of who started a stage as a process; the stage ends with it.
PARENT_VARIABLE = "RLHF_PARENT_PID"

# Inside a stage's work folder (the one folder that the stage may write).
OUTPUT_FOLDER = "output"
CHECKPOINTS_FOLDER = "checkpoints"
TENSORBOARD_FOLDER = "tensorboard"
OUTCOME_FILE = "outcome.json"
EVENTS_FILE = "events.jsonl"
MEASURED_FILE = "measured_contract.json"
SPEC_FILE = "spec.json"
MANIFEST_FILE = "MANIFEST.json"

# Inside artifacts: the folders and files that other stages open by name.
MERGED_FOLDER = "merged"
ADAPTER_FOLDER = "adapter"
MODEL_FOLDER = "model"
TRAIN_PAIRS_FILE = "train.parquet"
VALIDATION_PAIRS_FILE = "validation.parquet"
POLICY_TRAIN_PROMPTS_FILE = "policy_train_prompts.parquet"
POLICY_EVAL_PROMPTS_FILE = "policy_eval_prompts.parquet"
FUNNEL_FILE = "funnel.json"
TRAINING_INFO_FILE = "training_info.json"
REWARD_MODEL_EVALUATION_FILE = "reward_model_evaluation.json"
POLICY_EVALUATION_FILE = "policy_evaluation.json"
COMPLETIONS_FILE = "completions.parquet"
CURVES_FILE = "curves.jsonl"
REPORT_HTML_FILE = "report.html"
REPORT_MARKDOWN_FILE = "report.md"
REPORT_INPUT_FILE = "pipeline.json"
