"""train_reward_model: train a Bradley-Terry model with TRL's RewardTrainer; save it, reload it and compare scores."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import RewardConfig

from containers.algorithms.reward_model import LAST_LOSS, PairTrainer, pair_loss
from containers.algorithms.reward_model_packing import attention_of, plan_packing
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.outcome import Metric
from containers.data.pairs import Row, both_sides
from containers.data.rows import prompt_identity
from containers.data.splits import rows_of_some_prompts
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import spread_over_ranks
from containers.evals.sample_predictions import NUM_RELOAD_PAIRS, sample_predictions, write_sample_predictions
from containers.evals.score_statistics import score_statistics
from containers.evals.statistics import accuracy_metric, pair_losses
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.models.loading import apply_lora, freeze_all_but_head, load_new_reward_model, require_own_tokenizer
from containers.models.score_token import add_score_token
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import tokens_of_all
from containers.scoring.copies import TriedCopies
from containers.scoring.reload import save_and_reload, scoring_batch_size, tried_copies
from containers.scoring.scorer import RewardScorer
from containers.training.arguments import common_arguments
from containers.training.examples import TrainingExamples, as_dataset, note_policy_template
from containers.training.program import PairTraining, run_training
from containers.training.records import Prepared, peak_memory_bytes
from containers.training.sharding import ready_to_divide

_CONFIDENCE = 0.95
# By which the copies are tried before the first step.
_TRIED_PAIRS = 4


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train, verify, save `merged/` and `adapter/`, and reload both. Keeps the checkpoint with the lowest eval_loss."""
    return run_training(context, RewardModelTraining(context))


class RewardModelTraining(PairTraining[TrainRewardModelConfig]):
    """Bradley-Terry training on pairs."""

    config_type = TrainRewardModelConfig
    token_fields, unit = ("chosen_ids", "rejected_ids"), "pairs"
    reload_difference = 0.0

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
        trained = {"lora": "adapters and score head", "full": "every weight", "head": "the score head alone"}
        return f"Bradley-Terry, TRL RewardTrainer, {trained[self.config.trainable]}"

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Load the start model's tokenizer, with the score token if configured."""
        tokenizer = super().load_tokenizer()
        if self.config.use_cls:
            self.score_token_id = add_score_token(tokenizer)
        return tokenizer

    def tokenised(self, rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        """Return `chosen_ids` and `rejected_ids` of each pair."""
        tokens = iter(tokens_of_all(self.tokenizer, [side for row in rows for side in both_sides(row)], losses=losses))
        return [[{"chosen_ids": next(tokens), "rejected_ids": next(tokens)}] for _ in rows]

    def read_examples(self) -> TrainingExamples:
        """Tokenise the pairs; warn if the policy's own template would refuse its prompts."""
        examples = super().read_examples()
        if self.config.chat_template is not None:
            note_policy_template(self.context)
        return examples

    def prepare(self) -> Prepared:
        """Tokenise the pairs, and draw those of the evaluations during training."""
        prepared = super().prepare()
        whole = self.examples.validation.kept
        self.evaluated = rows_of_some_prompts(
            whole, most=self.config.max_eval_pairs, seed=self.context.spec.seed, purpose="evaluations in training"
        )
        if not self.evaluates_some:
            return prepared
        self.context.recorder.note(
            f"Evaluations during training are of {len(self.evaluated):,} of {len(whole):,} validation pairs, the same "
            "each time (train_reward_model.max_eval_pairs). The last weights and the chosen ones are measured on all."
        )
        return replace(prepared, num_evaluated=len(self.evaluated))

    @property
    def evaluates_some(self) -> bool:
        """Whether evaluations during training are of a part of the validation pairs."""
        return len(self.evaluated) < len(self.examples.validation.kept)

    def build_trainer(self, checkpoint: Path | None) -> PairTrainer:
        """Build TRL's trainer, with packed rows if the model supports them.

        Raises:
            StageError: TRL dropped pairs.
        """
        context, config, kept = self.context, self.config, self.examples.train.kept
        columns = [*self.token_fields, *(["margin"] if config.use_margin else [])]
        model = self.untrained_model()
        packing = plan_packing(context, config, model, kept)
        arguments = common_arguments(context, optimizer=config.optimizer, schedule=self.schedule, batch=packing.batch)
        # TRL rounds trained weights of a quantized model to bfloat16.
        quantized = config.quantization is not None
        trained = (item for item in model.named_parameters() if item[1].requires_grad and quantized)
        exact = {name: weight.detach().clone() for name, weight in trained}
        trainer = packing.trainer(
            **packing.arguments,
            zero_sum_penalty=config.zero_sum_penalty,
            model=model,
            args=ready_to_divide(
                RewardConfig(
                    **arguments,
                    max_length=config.max_length,
                    center_rewards_coefficient=config.center_rewards_coefficient,
                    # It would also set the adapters' own to 0.
                    disable_dropout=config.lora is None or not config.lora.dropout,
                    # A frozen trunk keeps no activations that could be computed again.
                    gradient_checkpointing=bool(config.gradient_checkpointing) and config.trainable != "head",
                ),
                context.spec.profile,
                offload=config.optimizer.offload,
            ),
            train_dataset=as_dataset(kept, columns),
            eval_dataset=as_dataset(self.evaluated, columns),
            whole_validation=as_dataset(self.examples.validation.kept, columns) if self.evaluates_some else None,
            processing_class=self.tokenizer,
            callbacks=self.callbacks(checkpoint),
        )
        for name, weight in trainer.model.named_parameters():
            if name in exact:
                weight.data = exact[name]
        if len(trainer.train_dataset) != len(kept):
            raise StageError(f"RewardTrainer dropped {len(kept) - len(trainer.train_dataset)} pairs on its own.")
        return trainer

    def while_training(self, trainer: PairTrainer) -> AbstractContextManager[None]:
        """Context with the attention of packed rows."""
        return attention_of(trainer)

    def untrained_model(self) -> PreTrainedModel | PeftModel:
        """Load the start model with a new score head, and with adapters if configured."""
        context, config = self.context, self.config
        model = load_new_reward_model(
            context.input_path("start_model"),
            pad_token_id=self.tokenizer.pad_token_id,
            score_token_id=self.score_token_id,
            seed=context.spec.seed,
            # Whole models train in float32 under autocast; frozen weights may be bfloat16.
            dtype=torch.float32 if config.trainable == "full" else compute_dtype(context.spec.profile),
            device=compute_device(context.spec.profile),
            quantization=config.quantization,
        )
        require_own_tokenizer(model, self.tokenizer, folder=context.input_path("start_model"))
        if config.trainable == "head":
            return freeze_all_but_head(model, score_token_id=self.score_token_id)
        return apply_lora(model, config.lora, task_type="SEQ_CLS", score_token_id=self.score_token_id)

    def judge(self, trainer: PairTrainer) -> None:
        """Score the validation pairs with the model in memory."""
        batch_size = scoring_batch_size(self.context)
        scorer = RewardScorer(trainer.model, self.tokenizer, max_length=self.config.max_length, batch_size=batch_size)
        token_ids = [row[side] for row in self.examples.validation.kept for side in self.token_fields]
        both = spread_over_ranks(token_ids, scorer.score_tokens)
        self.scores = list(zip(both[::2], both[1::2], strict=True))
        self.statistics = score_statistics(both, scores_of="validation pairs, both sides")
        self.whole = self._measured_on_all(trainer) if self.evaluates_some else ()

    def _measured_on_all(self, trainer: PairTrainer) -> tuple[Metric, ...]:
        """Return, and note, the training's own loss on all validation pairs: of the chosen and of the last weights."""
        config, state, rows = self.config, trainer.state, self.examples.validation.kept
        chosen, rejected = torch.tensor(self.scores, dtype=torch.float64).unbind(-1)
        margin = torch.tensor([row["margin"] for row in rows], dtype=torch.float64) if config.use_margin else 0.0
        best = float(pair_loss(chosen, rejected, margin=margin, centring=config.center_rewards_coefficient))
        last = next(entry[LAST_LOSS] for entry in reversed(state.log_history) if LAST_LOSS in entry)
        is_last = state.best_global_step == state.global_step
        beside = "" if is_last else f", and that of the last step, {state.global_step:,}, is {last:.4f}"
        self.context.recorder.note(
            f"Step {state.best_global_step:,} was chosen on {len(self.evaluated):,} validation pairs. On all "
            f"{len(rows):,} its loss is {best:.4f}{beside}."
        )
        return (
            Metric(name="validation_objective", value=best, unit="nats", count=len(rows)),
            Metric(name="validation_objective_last_step", value=last, unit="nats", count=len(rows)),
        )

    def save(self, trainer: PairTrainer) -> None:
        """Save `merged/`, `adapter/` and samples; reload both models and compare their scores."""
        context, kept = self.context, self.examples.validation.kept
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

    def tried_copies(self, context: StageContext) -> TriedCopies:
        """Try the copies on a few validation pairs."""
        rows = self.examples.validation.kept[:_TRIED_PAIRS]
        return tried_copies(context, self.config, self.untrained_model(), self.tokenizer, rows)

    def metrics(self, trainer: PairTrainer, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return accuracy on the validation pairs (those that chose the checkpoint), losses, and pairs left out."""
        margins, statistics, counts = [one - other for one, other in self.scores], self.statistics, 2 * NUM_RELOAD_PAIRS
        losses = pair_losses(margins)
        prompts = [prompt_identity(row["prompt"]) for row in self.examples.validation.kept]
        return (
            accuracy_metric(margins, name="validation_accuracy", confidence=_CONFIDENCE, clusters=prompts),
            Metric(name="validation_loss", value=sum(losses) / len(losses), unit="nats", count=len(margins)),
            *self.whole,
            *self.shared_metrics(trainer, parameters),
            Metric(name="reload_max_difference", value=self.reload_difference, unit="score", count=counts),
            Metric(name="score_mean", value=statistics.mean, unit="score", count=statistics.num_scores),
            Metric(name="score_std", value=statistics.standard_deviation, unit="score", count=statistics.num_scores),
            Metric(name="peak_memory", value=peak_memory_bytes(), unit="bytes"),
        )
