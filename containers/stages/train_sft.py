"""train_sft: fine-tune on the completions of the training pairs; loss on the completion only."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, TrainingArguments, set_seed

from containers.algorithms.offline_objectives import Likelihood
from containers.algorithms.offline_packing import expert_weight, in_one, plan_offline_packing
from containers.algorithms.offline_step import Example, OfflineStep
from containers.algorithms.offline_trainer import OfflineTrainer
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.outcome import Metric
from containers.data.pairs import Row
from containers.distributed.devices import compute_device, compute_dtype
from containers.harness.context import StageContext
from containers.models.loading import apply_lora, load_causal_model, require_own_tokenizer
from containers.models.template_losses import TemplateLosses
from containers.packing.kernel import try_kernels
from containers.packing.logps import Cut, add_logps, causal_of
from containers.training.arguments import common_arguments
from containers.training.completion_tokens import tokenised_completions
from containers.training.program import PairTraining, run_training, save_causal_model
from containers.training.records import Prepared, peak_memory_bytes
from containers.training.sharding import divides_model, ready_to_divide


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train, verify, and save `model/` (merged) and, with LoRA, `adapter/`. Keeps the lowest eval_loss."""
    return run_training(context, SftTraining(context))


class SftTraining(PairTraining[TrainSftConfig]):
    """Supervised fine-tuning on the prompt with the chosen completion of each pair, or with both."""

    config_type = TrainSftConfig
    token_fields, unit = ("input_ids",), "completions"

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
        return f"supervised fine-tuning on {self.config.completions} completions"

    def prepare(self) -> Prepared:
        """Tokenise the completions."""
        try_kernels(compute_device(self.context.spec.profile))
        return super().prepare()

    def tokenised(self, rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        """Return the tokens of each completion of the rows; see `tokenised_completions`."""
        sides = ("chosen", "rejected") if self.config.completions == "both" else ("chosen",)
        completions = [(row["prompt"], row[side]) for row in rows for side in sides]
        found = iter(tokenised_completions(self.tokenizer, completions, losses=losses))
        return [[next(found) for _ in sides] for _ in rows]

    def build_trainer(self, checkpoint: Path | None) -> OfflineTrainer:
        """Build the trainer, with packs if the model supports them."""
        context, config, profile = self.context, self.config, self.context.spec.profile
        model = self.untrained_model()
        examples, validation = (
            [example_of(row["input_ids"], row["completion_mask"]) for row in split.kept]
            for split in (self.examples.train, self.examples.validation)
        )
        cut = plan_offline_packing(context, config, causal_of(model), examples, what="Completions")
        add_logps(causal_of(model), temperature=1.0)
        common = common_arguments(
            context, optimizer=config.optimizer, schedule=self.schedule, batch=in_one(context.spec.batch)
        )
        return OfflineTrainer(
            examples=examples,
            validation=validation,
            # Both completions of a pair share its prompt if they are in one step.
            families=self.examples.train.places,
            make_step=partial(self._step, cut=cut, aux_weight=expert_weight(causal_of(model))),
            model=model,
            args=ready_to_divide(
                TrainingArguments(
                    **common,
                    activation_checkpointing=config.gradient_checkpointing,
                    activation_checkpointing_kwargs={"use_reentrant": False} if config.gradient_checkpointing else None,
                    remove_unused_columns=False,
                ),
                profile,
            ),
            processing_class=self.tokenizer,
            callbacks=self.callbacks(checkpoint),
        )

    def _step(self, accelerator: Any, *, cut: Cut, aux_weight: float) -> OfflineStep:
        return OfflineStep(
            accelerator=accelerator,
            objective=Likelihood(),
            cut=cut,
            divides=divides_model(self.context.spec.profile),
            aux_weight=aux_weight,
        )

    def untrained_model(self) -> PreTrainedModel | PeftModel:
        """Load the start model, with adapters if configured."""
        context, config = self.context, self.config
        # Adapters begin with random weights, the same ones on each rank.
        set_seed(context.spec.seed)
        # Whole models train in float32 under autocast; with adapters, the frozen weights may be bfloat16.
        dtype = compute_dtype(context.spec.profile) if config.lora else torch.float32
        start, device = context.input_path("start_model"), compute_device(context.spec.profile)
        model = load_causal_model(start, dtype=dtype, device=device, note=context.recorder.note)
        require_own_tokenizer(model, self.tokenizer, folder=start)
        return apply_lora(model, config.lora, task_type="CAUSAL_LM")

    def save(self, trainer: OfflineTrainer) -> None:
        """Save `model/` and, with adapters, `adapter/`."""
        save_causal_model(self.context, trainer.model, self.tokenizer)

    def metrics(self, trainer: OfflineTrainer, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return the losses, and the numbers of completions left out."""
        count = len(self.examples.validation.kept)
        return (
            Metric(name="validation_loss", value=trainer.state.best_metric, unit="nats", count=count),
            *self.shared_metrics(trainer, parameters),
            Metric(name="peak_memory", value=peak_memory_bytes(), unit="bytes"),
        )


def example_of(input_ids: Sequence[int], completion_mask: Sequence[int]) -> Example:
    """Return the example of a prompt with its completion; a first token that nothing predicts is its prompt."""
    start = max(len(completion_mask) - sum(completion_mask), 1)
    return Example(prompt=list(input_ids[:start]), completions=(list(input_ids[start:]),))
