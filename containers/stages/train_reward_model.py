"""train_reward_model: train a Bradley-Terry model with TRL's RewardTrainer; save it, reload it and compare scores."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import RewardConfig

from containers.algorithms.reward_model import PairTrainer
from containers.algorithms.reward_model_packing import attention_of, plan_packing
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.outcome import Metric
from containers.data.pairs import Row, both_sides
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import spread_over_ranks
from containers.evals.sample_predictions import NUM_RELOAD_PAIRS, sample_predictions, write_sample_predictions
from containers.evals.score_statistics import score_statistics
from containers.evals.statistics import accuracy_metric, pair_losses
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.models.chat_template import peculiarities
from containers.models.loading import (
    apply_lora,
    freeze_all_but_head,
    load_new_reward_model,
    load_tokenizer,
    num_embedding_rows,
    require_own_tokenizer,
)
from containers.models.score_token import add_score_token
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import tokens_of_all
from containers.scoring.reload import save_and_reload, score_token_id, scoring_batch_size
from containers.scoring.scorer import RewardScorer
from containers.training.arguments import common_arguments
from containers.training.examples import (
    TrainingExamples,
    as_dataset,
    note_policy_template,
    read_training_examples,
    resolve_training_schedule,
)
from containers.training.loop import training_callbacks
from containers.training.program import Prepared, Training, last_loss, prepared_of, run_training, size_metrics
from containers.training.records import peak_memory_bytes
from containers.training.sharding import ready_to_divide

_CONFIDENCE = 0.95


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train, verify, save `merged/` and `adapter/`, and reload both. Keeps the checkpoint with the lowest eval_loss."""
    return run_training(context, RewardModelTraining(context))


class RewardModelTraining(Training):
    """Bradley-Terry training on pairs."""

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self.config = _config(context)
        self.reload_difference = 0.0

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
        trained = {"lora": "adapters and score head", "full": "every weight", "head": "the score head alone"}
        return f"Bradley-Terry, TRL RewardTrainer, {trained[self.config.trainable]}"

    def prepare(self) -> Prepared:
        """Tokenise the pairs."""
        self.tokenizer = _tokenizer(self.context, self.config)
        self.pairs = _tokenised_pairs(self.context, self.config, self.tokenizer)
        self.schedule = resolve_training_schedule(self.context, self.config, self.pairs)
        return prepared_of(self.pairs, self.schedule)

    def build_trainer(self, checkpoint: Path | None) -> PairTrainer:
        """Build TRL's trainer, with packed rows if the model supports them.

        Raises:
            StageError: TRL dropped pairs.
        """
        context, config, kept = self.context, self.config, self.pairs.train.kept
        model = self.untrained_model()
        packing = plan_packing(context, config, model, kept)
        arguments = common_arguments(context, optimizer=config.optimizer, schedule=self.schedule, batch=packing.batch)
        trainer = packing.trainer(
            **packing.arguments,
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
            train_dataset=_dataset(kept, config),
            eval_dataset=_dataset(self.pairs.validation.kept, config),
            processing_class=self.tokenizer,
            callbacks=training_callbacks(context, schedule=self.schedule, checkpoint=checkpoint),
        )
        if len(trainer.train_dataset) != len(kept):
            raise StageError(f"RewardTrainer dropped {len(kept) - len(trainer.train_dataset)} pairs on its own.")
        return trainer

    def while_training(self, trainer: PairTrainer) -> AbstractContextManager[None]:
        """Context with the attention of packed rows."""
        return attention_of(trainer)

    def untrained_model(self) -> PreTrainedModel | PeftModel:
        """Load the start model with a new score head, and with adapters if configured."""
        context, config = self.context, self.config
        token_id = score_token_id(config, self.tokenizer)
        model = load_new_reward_model(
            context.input_path("start_model"),
            pad_token_id=self.tokenizer.pad_token_id,
            score_token_id=token_id,
            seed=context.spec.seed,
            # Whole models train in float32 under autocast; frozen weights may be bfloat16.
            dtype=torch.float32 if config.trainable == "full" else compute_dtype(context.spec.profile),
            device=compute_device(context.spec.profile),
        )
        require_own_tokenizer(model, self.tokenizer, folder=context.input_path("start_model"))
        if config.trainable == "head":
            return freeze_all_but_head(model, score_token_id=token_id)
        return apply_lora(model, config.lora, task_type="SEQ_CLS", score_token_id=token_id)

    def judge(self, trainer: PairTrainer) -> None:
        """Score the validation pairs with the model in memory."""
        kept = self.pairs.validation.kept
        self.margins, self.scores = _validation_scores(self.context, self.config, trainer.model, self.tokenizer, kept)
        both = [score for pair in self.scores for score in pair]
        self.statistics = score_statistics(both, scores_of="validation pairs, both sides")

    def save(self, trainer: PairTrainer) -> None:
        """Save `merged/`, `adapter/` and samples; reload both models and compare their scores."""
        context, kept = self.context, self.pairs.validation.kept
        write_sample_predictions(context.output, sample_predictions(kept, self.scores))
        self.reload_difference = save_and_reload(
            context,
            self.config,
            trainer.model,
            self.tokenizer,
            rows=kept,
            scores=self.scores,
            statistics=self.statistics,
        )

    def metrics(self, trainer: PairTrainer, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return accuracy on the validation pairs, losses, and the numbers of pairs left out."""
        margins, statistics, counts = self.margins, self.statistics, 2 * NUM_RELOAD_PAIRS
        return (
            accuracy_metric(margins, name="validation_accuracy", confidence=_CONFIDENCE),
            Metric(name="validation_loss", value=_mean(pair_losses(margins)), unit="nats", count=len(margins)),
            Metric(name="train_loss", value=last_loss(trainer), unit="nats"),
            *size_metrics(trainer, parameters),
            Metric(name="train_pairs_left_out", value=self.pairs.train.num_left_out, unit="pairs"),
            Metric(name="validation_pairs_left_out", value=self.pairs.validation.num_left_out, unit="pairs"),
            Metric(name="reload_max_difference", value=self.reload_difference, unit="score", count=counts),
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
    """Load the start model's tokenizer, with the configured chat template and score token, if any."""
    start = context.input("start_model")
    tokenizer = load_tokenizer(Path(start.path), origin=start.origin, chat_template=config.chat_template)
    if config.chat_template is None:
        for peculiarity in peculiarities(tokenizer, setting="train_reward_model.chat_template"):
            context.recorder.note(f"Warning: {peculiarity}")
    if config.use_cls:
        add_score_token(tokenizer)
    return tokenizer


def _tokenised_pairs(
    context: StageContext, config: TrainRewardModelConfig, tokenizer: PreTrainedTokenizerBase
) -> TrainingExamples:
    """Return the pairs with `chosen_ids` and `rejected_ids`."""

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


def _dataset(rows: list[Row], config: TrainRewardModelConfig) -> Dataset:
    return as_dataset(rows, ["chosen_ids", "rejected_ids", *(["margin"] if config.use_margin else [])])


def _validation_scores(
    context: StageContext,
    config: TrainRewardModelConfig,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Row],
) -> tuple[list[float], list[tuple[float, float]]]:
    """Return the margin and the two scores of each validation pair, by the trained model in memory."""
    scorer = RewardScorer(model, tokenizer, max_length=config.max_length, batch_size=scoring_batch_size(context))
    token_ids = [ids for row in rows for ids in (row["chosen_ids"], row["rejected_ids"])]
    flat = spread_over_ranks(token_ids, scorer.score_tokens)
    scores = list(zip(flat[::2], flat[1::2], strict=True))
    return [chosen - rejected for chosen, rejected in scores], scores


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
