"""Supervised fine-tuning on the completions of the training pairs: TRL's SFTTrainer, loss on the completion only."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from trl import SFTConfig, SFTTrainer

from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import ADAPTER_FOLDER, MODEL_FOLDER
from containers.contracts.outcome import Metric
from containers.contracts.schedule import ResolvedSchedule
from containers.data.pairs import Row
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import join_ranks, leave_ranks
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.models.chat_template import peculiarities
from containers.models.loading import (
    apply_lora,
    demand_own_tokenizer,
    load_causal_model,
    load_tokenizer,
    num_embedding_rows,
    parameter_counts,
    save_adapter,
    save_merged,
)
from containers.models.template_losses import TemplateLosses
from containers.packing.kernel_trial import try_kernels
from containers.training.arguments import common_arguments
from containers.training.checkpoints import checkpoint_step
from containers.training.completion_tokens import tokenised_completions
from containers.training.examples import (
    TrainingExamples,
    as_dataset,
    read_training_examples,
    resolve_training_schedule,
)
from containers.training.loop import quieten, resume_point, train, training_callbacks, verify_training
from containers.training.records import peak_memory_bytes, training_info, write_training_records
from containers.training.sharding import divides_model, ready_to_divide, whole_model


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train, verify, and save `model/` (adapters merged) and, with LoRA, `adapter/`. Kept: the lowest eval_loss."""
    started_at_s = time.monotonic()
    config = _config(context)
    join_ranks(context)
    try_kernels(compute_device(context.spec.profile))
    start = context.input("start_model")
    tokenizer = load_tokenizer(Path(start.path), origin=start.origin, chat_template=config.chat_template)
    if config.chat_template is None:
        for peculiarity in peculiarities(tokenizer, setting="train_sft.chat_template"):
            context.recorder.note(f"Warning: {peculiarity}")
    examples = _tokenised_examples(context, config, tokenizer)
    schedule = resolve_training_schedule(context, config, examples)
    checkpoint = resume_point(context)
    trainer = _trainer(context, config, examples, schedule=schedule, checkpoint=checkpoint, tokenizer=tokenizer)
    parameters = parameter_counts(trainer.model)
    train(context, trainer, checkpoint, planned_steps=schedule.num_steps)
    if divides_model(context.spec.profile):
        trainer.model = whole_model(trainer.model, _model_to_train(context, config, tokenizer))
    verify_training(trainer, planned_steps=schedule.num_steps)
    if leave_ranks():
        info = training_info(
            context,
            trainer=trainer,
            algorithm=f"supervised fine-tuning on {config.completions} completions, TRL SFTTrainer",
            planned_steps=schedule.num_steps,
            num_examples=len(examples.train.kept),
            examples_left_out=examples.train.num_over_long,
            examples_without_row=examples.train.num_without_row,
            parameters=parameters,
            started_at_s=started_at_s,
            resumed_from_step=checkpoint_step(checkpoint),
        )
        write_training_records(context, trainer=trainer, info=info)
        _save(context, trainer.model, tokenizer)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return (
        Metric(
            name="validation_loss", value=trainer.state.best_metric, unit="nats", count=len(examples.validation.kept)
        ),
        Metric(name="train_loss", value=losses[-1], unit="nats"),
        Metric(name="num_steps", value=trainer.state.global_step, unit="steps"),
        Metric(name="trainable_parameters", value=parameters[0], unit="parameters"),
        Metric(name="total_parameters", value=parameters[1], unit="parameters"),
        Metric(name="train_completions_left_out", value=examples.train.num_left_out, unit="completions"),
        Metric(name="validation_completions_left_out", value=examples.validation.num_left_out, unit="completions"),
        Metric(name="peak_memory", value=peak_memory_bytes(), unit="bytes"),
    )


def _config(context: StageContext) -> TrainSftConfig:
    config = context.spec.config
    if not isinstance(config, TrainSftConfig):
        raise BadConfigError(f"train_sft was given the config of {config.stage}.")
    return config


def _tokenised_examples(
    context: StageContext, config: TrainSftConfig, tokenizer: PreTrainedTokenizerBase
) -> TrainingExamples:
    """Of each pair the chosen completion, or both, with its prompt."""
    sides = ("chosen", "rejected") if config.completions == "both" else ("chosen",)

    def tokenised(rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        completions = [(row["prompt"], row[side]) for row in rows for side in sides]
        found = iter(tokenised_completions(tokenizer, completions, losses=losses))
        return [[next(found) for _ in sides] for _ in rows]

    return read_training_examples(
        context,
        config,
        tokenizer,
        tokenised=tokenised,
        token_fields=["input_ids"],
        num_rows=num_embedding_rows(context.input_path("start_model")),
        unit="completions",
    )


def _trainer(
    context: StageContext,
    config: TrainSftConfig,
    examples: TrainingExamples,
    *,
    schedule: ResolvedSchedule,
    checkpoint: Path | None,
    tokenizer: PreTrainedTokenizerBase,
) -> SFTTrainer:
    arguments = common_arguments(context, optimizer=config.optimizer, schedule=schedule, batch=context.spec.batch)
    columns = ["input_ids", "completion_mask"]
    model = _model_to_train(context, config, tokenizer)
    trainer = SFTTrainer(
        model=model,
        args=ready_to_divide(
            SFTConfig(
                **arguments,
                max_length=config.max_length,
                completion_only_loss=True,
                gradient_checkpointing=config.gradient_checkpointing,
            ),
            context.spec.profile,
        ),
        train_dataset=as_dataset(examples.train.kept, columns),
        eval_dataset=as_dataset(examples.validation.kept, columns),
        processing_class=tokenizer,
        callbacks=training_callbacks(context, schedule=schedule, checkpoint=checkpoint),
    )
    quieten(trainer)
    if len(trainer.train_dataset) != len(examples.train.kept):
        raise StageError(
            f"SFTTrainer kept {len(trainer.train_dataset)} of {len(examples.train.kept)} completions of its own accord."
        )
    return trainer


def _model_to_train(
    context: StageContext, config: TrainSftConfig, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel | PeftModel:
    # Adapters begin at random, and on each rank with the same numbers.
    set_seed(context.spec.seed)
    # Whole models train in float32 under autocast; below adapters the frozen weights may be bfloat16.
    dtype = compute_dtype(context.spec.profile) if config.lora else torch.float32
    start, device = context.input_path("start_model"), compute_device(context.spec.profile)
    model = load_causal_model(start, dtype=dtype, device=device, note=context.recorder.note)
    demand_own_tokenizer(model, tokenizer, folder=start)
    return apply_lora(model, config.lora, task_type="CAUSAL_LM")


def _save(context: StageContext, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    if isinstance(model, PeftModel):
        origin = context.input("start_model").origin
        save_adapter(model, tokenizer, context.output / ADAPTER_FOLDER, base_model=origin)
    else:
        model.to(compute_dtype(context.spec.profile))
    save_merged(model, tokenizer, context.output / MODEL_FOLDER)
