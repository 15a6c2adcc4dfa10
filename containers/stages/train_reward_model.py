"""Bradley-Terry reward model: TRL's RewardTrainer on the training pairs, saved, reloaded from disk and compared."""

import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedTokenizerBase
from trl import RewardConfig, RewardTrainer

from containers.contracts.names import ADAPTER_FOLDER, MERGED_FOLDER
from containers.contracts.outcome import Metric
from containers.contracts.stage_configs import TrainRewardModelConfig
from containers.schedule import ResolvedSchedule
from containers.stages.checkpoints import checkpoint_step
from containers.stages.context import StageContext
from containers.stages.errors import BadConfigError, StageError
from containers.stages.models import (
    apply_lora,
    compute_device,
    compute_dtype,
    load_new_reward_model,
    load_tokenizer,
    parameter_counts,
    save_adapter,
    save_merged,
)
from containers.stages.pair_artifact import Row, as_dataset, both_sides
from containers.stages.ranks import is_first_rank, join_ranks, spread_over_ranks, wait_for_all_ranks
from containers.stages.sample_predictions import NUM_RELOAD_PAIRS, sample_predictions, write_sample_predictions
from containers.stages.scoring import RewardScorer, allowed_difference, conversation_tokens
from containers.stages.statistics import accuracy_metric, pair_losses
from containers.stages.trainer_arguments import common_arguments
from containers.stages.training import quieten, resume_point, train, training_callbacks, verify_training
from containers.stages.training_examples import TrainingExamples, read_training_examples, resolve_training_schedule
from containers.stages.training_records import peak_memory_bytes, training_info, write_training_records

_CONFIDENCE = 0.95


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train, verify, save `merged/` and `adapter/`, and reload both. Kept: the checkpoint with the lowest eval_loss."""
    started_at_s = time.monotonic()
    config = _config(context)
    join_ranks(context)
    tokenizer = load_tokenizer(context.input_path("start_model"), origin=context.input("start_model").origin)
    pairs = _tokenised_pairs(context, config, tokenizer)
    schedule = resolve_training_schedule(context, config, pairs)
    checkpoint = resume_point(context)
    trainer = _trainer(context, config, pairs, schedule=schedule, checkpoint=checkpoint, tokenizer=tokenizer)
    parameters = parameter_counts(trainer.model)
    train(context, trainer, checkpoint, planned_steps=schedule.num_steps)
    verify_training(trainer, planned_steps=schedule.num_steps)
    margins, scores = _validation_scores(context, config, trainer.model, tokenizer, pairs.validation.kept)
    difference = 0.0
    if is_first_rank():
        info = training_info(
            context,
            trainer=trainer,
            algorithm="Bradley-Terry, TRL RewardTrainer",
            planned_steps=schedule.num_steps,
            num_examples=len(pairs.train.kept),
            examples_left_out=pairs.train.num_left_out,
            parameters=parameters,
            started_at_s=started_at_s,
            resumed_from_step=checkpoint_step(checkpoint),
        )
        write_training_records(context, trainer=trainer, info=info)
        write_sample_predictions(context.output, sample_predictions(pairs.validation.kept, scores))
        difference = _save_and_reload(context, config, trainer.model, tokenizer, pairs.validation.kept, scores)
    wait_for_all_ranks()
    return (
        accuracy_metric(margins, name="validation_accuracy", confidence=_CONFIDENCE),
        Metric(name="validation_loss", value=_mean(pair_losses(margins)), unit="nats", count=len(margins)),
        Metric(name="train_loss", value=_last_loss(trainer), unit="nats"),
        Metric(name="num_steps", value=trainer.state.global_step, unit="steps"),
        Metric(name="trainable_parameters", value=parameters[0], unit="parameters"),
        Metric(name="total_parameters", value=parameters[1], unit="parameters"),
        Metric(name="train_pairs_left_out", value=pairs.train.num_left_out, unit="pairs"),
        Metric(name="validation_pairs_left_out", value=pairs.validation.num_left_out, unit="pairs"),
        Metric(name="reload_max_difference", value=difference, unit="score", count=2 * NUM_RELOAD_PAIRS),
        Metric(name="peak_memory", value=peak_memory_bytes(), unit="bytes"),
    )


def _config(context: StageContext) -> TrainRewardModelConfig:
    config = context.spec.config
    if not isinstance(config, TrainRewardModelConfig):
        raise BadConfigError(f"train_reward_model was given the config of {config.stage}.")
    return config


def _tokenised_pairs(
    context: StageContext, config: TrainRewardModelConfig, tokenizer: PreTrainedTokenizerBase
) -> TrainingExamples:
    """The pairs with `chosen_ids` and `rejected_ids`."""

    def tokenised(row: Row) -> list[Row]:
        chosen, rejected = both_sides(row)
        return [
            {
                **row,
                "chosen_ids": conversation_tokens(tokenizer, chosen),
                "rejected_ids": conversation_tokens(tokenizer, rejected),
            }
        ]

    return read_training_examples(
        context,
        config,
        tokenised=tokenised,
        num_tokens=lambda pair: max(len(pair["chosen_ids"]), len(pair["rejected_ids"])),
        unit="pairs",
    )


def _trainer(
    context: StageContext,
    config: TrainRewardModelConfig,
    pairs: TrainingExamples,
    *,
    schedule: ResolvedSchedule,
    checkpoint: Path | None,
    tokenizer: PreTrainedTokenizerBase,
) -> RewardTrainer:
    # Whole models train in float32 under autocast; below adapters the frozen weights may be bfloat16.
    dtype = compute_dtype(context.spec.profile) if config.lora else torch.float32
    model = load_new_reward_model(
        context.input_path("start_model"),
        pad_token_id=tokenizer.pad_token_id,
        seed=context.spec.seed,
        dtype=dtype,
        device=compute_device(context.spec.profile),
    )
    arguments = common_arguments(context, optimizer=config.optimizer, schedule=schedule, batch=context.spec.batch)
    trainer = RewardTrainer(
        model=apply_lora(model, config.lora, task_type="SEQ_CLS"),
        args=RewardConfig(
            **arguments,
            max_length=config.max_length,
            center_rewards_coefficient=config.center_rewards_coefficient,
            gradient_checkpointing=config.gradient_checkpointing,
        ),
        train_dataset=_dataset(pairs.train.kept, config),
        eval_dataset=_dataset(pairs.validation.kept, config),
        processing_class=tokenizer,
        callbacks=training_callbacks(context, schedule=schedule, checkpoint=checkpoint),
    )
    quieten(trainer)
    if len(trainer.train_dataset) != len(pairs.train.kept):
        raise StageError(f"RewardTrainer dropped {len(pairs.train.kept) - len(trainer.train_dataset)} pairs by itself.")
    return trainer


def _dataset(rows: list[Row], config: TrainRewardModelConfig) -> Dataset:
    return as_dataset(rows, ["chosen_ids", "rejected_ids", *(["margin"] if config.use_margin else [])])


def _validation_scores(
    context: StageContext,
    config: TrainRewardModelConfig,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Row],
) -> tuple[list[float], list[tuple[float, float]]]:
    """Margin of each validation pair and its two scores, by the trained model in memory."""
    scorer = RewardScorer(model, tokenizer, max_length=config.max_length, batch_size=_scoring_batch_size(context))
    token_ids = [ids for row in rows for ids in (row["chosen_ids"], row["rejected_ids"])]
    flat = spread_over_ranks(token_ids, scorer.score_tokens)
    scores = list(zip(flat[::2], flat[1::2], strict=True))
    return [chosen - rejected for chosen, rejected in scores], scores


def _save_and_reload(
    context: StageContext,
    config: TrainRewardModelConfig,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Row],
    scores: list[tuple[float, float]],
) -> float:
    """Write `adapter/` and `merged/`, load both from disk, and return the largest difference to the trained scores.

    Raises:
        StageError: a saved copy scores otherwise than the trained model.
    """
    merged, adapter = context.output / MERGED_FOLDER, context.output / ADAPTER_FOLDER
    if isinstance(model, PeftModel):
        save_adapter(model, tokenizer, adapter, base_model=context.input("start_model").origin)
    else:
        model.to(compute_dtype(context.spec.profile))
    # Off the GPU, to make room for the copies.
    save_merged(model, tokenizer, merged).cpu()
    differences = []
    for folder in (merged, adapter) if isinstance(model, PeftModel) else (merged,):
        scorer = _reloaded(context, config, folder, tokenizer)
        wanted = [score for pair in scores[:NUM_RELOAD_PAIRS] for score in pair]
        found = scorer.score([side for row in rows[:NUM_RELOAD_PAIRS] for side in both_sides(row)])
        differences.append(max(abs(a - b) for a, b in zip(wanted, found, strict=True)))
        bound = allowed_difference(compute_dtype(context.spec.profile), wanted)
        if differences[-1] > bound:
            raise StageError(
                f"{folder.name}/, loaded from disk, scores up to {differences[-1]:.3g} away from the trained model; "
                f"at most {bound:.3g} is allowed. What was saved is not what was trained."
            )
    return max(differences)


def _reloaded(
    context: StageContext, config: TrainRewardModelConfig, folder: Path, tokenizer: PreTrainedTokenizerBase
) -> RewardScorer:
    """The scorer of a saved copy: plain for `merged/`, through PEFT for `adapter/`."""
    device, dtype = compute_device(context.spec.profile), compute_dtype(context.spec.profile)
    batch_size = _scoring_batch_size(context)
    if folder.name == MERGED_FOLDER:
        return RewardScorer.load(
            folder, device=device, dtype=dtype, max_length=config.max_length, batch_size=batch_size
        )
    # Another seed: a score head that the adapter does not hold must show.
    base = load_new_reward_model(
        context.input_path("start_model"),
        pad_token_id=tokenizer.pad_token_id,
        seed=context.spec.seed + 1,
        dtype=dtype,
        device=device,
    )
    adapted = PeftModel.from_pretrained(base, folder)
    return RewardScorer(adapted, tokenizer, max_length=config.max_length, batch_size=batch_size)


def _scoring_batch_size(context: StageContext) -> int:
    return 2 * context.spec.profile.max_per_device_batch_size


def _last_loss(trainer: RewardTrainer) -> float:
    return float(next(entry["loss"] for entry in reversed(trainer.state.log_history) if "loss" in entry))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
