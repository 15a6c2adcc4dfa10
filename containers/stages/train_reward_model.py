"""Bradley-Terry reward model: TRL's RewardTrainer on the training pairs, saved, reloaded from disk and compared."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import RewardConfig

from containers.algorithms.reward_model import PairTrainer
from containers.algorithms.reward_model_packing import attention_of, plan_packing
from containers.contracts.certificate import ScoreStatistics
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.outcome import Metric
from containers.contracts.schedule import ResolvedSchedule
from containers.data.pairs import Row, both_sides
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import join_ranks, leave_ranks, spread_over_ranks
from containers.evals.sample_predictions import NUM_RELOAD_PAIRS, sample_predictions, write_sample_predictions
from containers.evals.score_statistics import score_statistics
from containers.evals.statistics import accuracy_metric, pair_losses
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.models.chat_template import peculiarities
from containers.models.loading import (
    apply_lora,
    demand_own_tokenizer,
    freeze_all_but_head,
    load_new_reward_model,
    load_tokenizer,
    num_embedding_rows,
    parameter_counts,
)
from containers.models.score_token import add_score_token
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import tokens_of_all
from containers.scoring.reload import save_and_reload, score_token_id, scoring_batch_size
from containers.scoring.scorer import RewardScorer
from containers.training.arguments import common_arguments
from containers.training.checkpoints import checkpoint_step
from containers.training.examples import (
    TrainingExamples,
    as_dataset,
    note_policy_template,
    read_training_examples,
    resolve_training_schedule,
)
from containers.training.loop import quieten, resume_point, train, training_callbacks, verify_training
from containers.training.records import peak_memory_bytes, training_info, write_training_records
from containers.training.sharding import divides_model, ready_to_divide, whole_model

_CONFIDENCE = 0.95


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train, verify, save `merged/` and `adapter/`, and reload both. Kept: the checkpoint with the lowest eval_loss."""
    started_at_s = time.monotonic()
    config = _config(context)
    join_ranks(context)
    tokenizer = _tokenizer(context, config)
    pairs = _tokenised_pairs(context, config, tokenizer)
    schedule = resolve_training_schedule(context, config, pairs)
    checkpoint = resume_point(context)
    trainer = _trainer(context, config, pairs, schedule=schedule, checkpoint=checkpoint, tokenizer=tokenizer)
    parameters = parameter_counts(trainer.model)
    with attention_of(trainer):
        train(context, trainer, checkpoint, planned_steps=schedule.num_steps)
    if divides_model(context.spec.profile):
        trainer.model = whole_model(trainer.model, _model_to_train(context, config, tokenizer))
    verify_training(trainer, planned_steps=schedule.num_steps)
    margins, scores = _validation_scores(context, config, trainer.model, tokenizer, pairs.validation.kept)
    difference, statistics = 0.0, _statistics(scores)
    if leave_ranks():
        info = training_info(
            context,
            trainer=trainer,
            algorithm=_algorithm(config),
            planned_steps=schedule.num_steps,
            num_examples=len(pairs.train.kept),
            examples_left_out=pairs.train.num_over_long,
            examples_without_row=pairs.train.num_without_row,
            parameters=parameters,
            started_at_s=started_at_s,
            resumed_from_step=checkpoint_step(checkpoint),
        )
        write_training_records(context, trainer=trainer, info=info)
        write_sample_predictions(context.output, sample_predictions(pairs.validation.kept, scores))
        difference = save_and_reload(
            context, config, trainer.model, tokenizer, rows=pairs.validation.kept, scores=scores, statistics=statistics
        )
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
        Metric(name="score_mean", value=statistics.mean, unit="score", count=statistics.num_scores),
        Metric(name="score_std", value=statistics.standard_deviation, unit="score", count=statistics.num_scores),
        Metric(name="peak_memory", value=peak_memory_bytes(), unit="bytes"),
    )


def _config(context: StageContext) -> TrainRewardModelConfig:
    config = context.spec.config
    if not isinstance(config, TrainRewardModelConfig):
        raise BadConfigError(f"train_reward_model was given the config of {config.stage}.")
    return config


def _tokenizer(context: StageContext, config: TrainRewardModelConfig) -> PreTrainedTokenizerBase:
    """The start model's tokenizer, with the configuration's chat template and score token where it has them."""
    start = context.input("start_model")
    tokenizer = load_tokenizer(Path(start.path), origin=start.origin, chat_template=config.chat_template)
    if config.chat_template is None:
        for peculiarity in peculiarities(tokenizer, setting="train_reward_model.chat_template"):
            context.recorder.note(f"Warning: {peculiarity}")
    if config.use_cls:
        add_score_token(tokenizer)
    return tokenizer


def _algorithm(config: TrainRewardModelConfig) -> str:
    trained = {"lora": "adapters and score head", "full": "every weight", "head": "the score head alone"}
    return f"Bradley-Terry, TRL RewardTrainer, {trained[config.trainable]}"


def _tokenised_pairs(
    context: StageContext, config: TrainRewardModelConfig, tokenizer: PreTrainedTokenizerBase
) -> TrainingExamples:
    """The pairs with `chosen_ids` and `rejected_ids`."""

    def tokenised(rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        tokens = iter(tokens_of_all(tokenizer, [side for row in rows for side in both_sides(row)], losses=losses))
        return [[{"chosen_ids": next(tokens), "rejected_ids": next(tokens)}] for _ in rows]

    examples = read_training_examples(
        context,
        config,
        tokenizer,
        tokenised=tokenised,
        token_fields=["chosen_ids", "rejected_ids"],
        num_rows=num_embedding_rows(
            context.input_path("start_model"), score_token_id=score_token_id(config, tokenizer)
        ),
        unit="pairs",
    )
    if config.chat_template is not None:
        note_policy_template(context)
    return examples


def _trainer(
    context: StageContext,
    config: TrainRewardModelConfig,
    pairs: TrainingExamples,
    *,
    schedule: ResolvedSchedule,
    checkpoint: Path | None,
    tokenizer: PreTrainedTokenizerBase,
) -> PairTrainer:
    model = _model_to_train(context, config, tokenizer)
    packing = plan_packing(context, config, model, pairs.train.kept)
    kind, kind_arguments, batch = packing.trainer, packing.arguments, packing.batch
    arguments = common_arguments(context, optimizer=config.optimizer, schedule=schedule, batch=batch)
    trainer: PairTrainer = kind(
        **kind_arguments,
        zero_sum_penalty=config.zero_sum_penalty,
        model=model,
        args=ready_to_divide(
            RewardConfig(
                **arguments,
                max_length=config.max_length,
                center_rewards_coefficient=config.center_rewards_coefficient,
                # A frozen trunk keeps no activations that could be computed again.
                gradient_checkpointing=config.gradient_checkpointing and config.trainable != "head",
            ),
            context.spec.profile,
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


def _model_to_train(
    context: StageContext, config: TrainRewardModelConfig, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel | PeftModel:
    token_id = score_token_id(config, tokenizer)
    model = load_new_reward_model(
        context.input_path("start_model"),
        pad_token_id=tokenizer.pad_token_id,
        score_token_id=token_id,
        seed=context.spec.seed,
        # Whole models train in float32 under autocast; frozen weights may be bfloat16.
        dtype=torch.float32 if config.trainable == "full" else compute_dtype(context.spec.profile),
        device=compute_device(context.spec.profile),
    )
    demand_own_tokenizer(model, tokenizer, folder=context.input_path("start_model"))
    if config.trainable == "head":
        return freeze_all_but_head(model, score_token_id=token_id)
    return apply_lora(model, config.lora, task_type="SEQ_CLS", score_token_id=token_id)


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
    scorer = RewardScorer(model, tokenizer, max_length=config.max_length, batch_size=scoring_batch_size(context))
    token_ids = [ids for row in rows for ids in (row["chosen_ids"], row["rejected_ids"])]
    flat = spread_over_ranks(token_ids, scorer.score_tokens)
    scores = list(zip(flat[::2], flat[1::2], strict=True))
    return [chosen - rejected for chosen, rejected in scores], scores


def _statistics(scores: list[tuple[float, float]]) -> ScoreStatistics:
    return score_statistics([score for pair in scores for score in pair], scores_of="validation pairs, both sides")


def _last_loss(trainer: PairTrainer) -> float:
    return float(next(entry["loss"] for entry in reversed(trainer.state.log_history) if "loss" in entry))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
