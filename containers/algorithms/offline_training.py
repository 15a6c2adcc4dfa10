"""The training of a policy on completions that are given; fine-tuning and the losses on pairs say what differs."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from peft import PeftModel
from transformers import PreTrainedModel, set_seed

from containers.algorithms.offline_packing import expert_weight, in_one, plan_offline_packing
from containers.algorithms.offline_step import Example, Objective, OfflineStep
from containers.algorithms.offline_trainer import OfflineTrainer
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.data.pairs import Row
from containers.distributed.devices import compute_device
from containers.harness.context import StageContext
from containers.models.loading import apply_lora
from containers.packing.kernel import try_kernels
from containers.packing.logps import Cut, add_logps, causal_of
from containers.scoring.copies import TriedCopies
from containers.training.arguments import completion_arguments
from containers.training.causal_copies import save_causal_model, tried_causal_copies
from containers.training.program import PairTraining
from containers.training.records import Prepared
from containers.training.sharding import divides_model
from containers.training.start_model import load_start_model

OfflineConfigT = TypeVar("OfflineConfigT", TrainSftConfig, TrainDpoConfig)


class OfflineTraining(PairTraining[OfflineConfigT]):
    """A training of the start model on packed examples; it keeps the lowest eval_loss."""

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """The loss."""

    @abstractmethod
    def examples_of(self, rows: Sequence[Row]) -> list[Example]:
        """Return an example for each tokenised row of a split."""

    def finished(
        self, splits: list[list[Example]], *, model: PreTrainedModel | PeftModel, cut: Cut
    ) -> list[list[Example]]:
        """Return the splits with what the untrained model gives; all ranks call it before the model is divided."""
        return splits

    def prepare(self) -> Prepared:
        """Tokenise the examples."""
        try_kernels(compute_device(self.context.spec.profile))
        return super().prepare()

    def build_trainer(self, checkpoint: Path | None) -> OfflineTrainer:
        """Build the trainer, with packs if the model supports them."""
        context, config = self.context, self.config
        model = self.untrained_model()
        causal = causal_of(model)
        splits = [self.examples_of(split.kept) for split in (self.examples.train, self.examples.validation)]
        cut = plan_offline_packing(context, config, causal, splits[0], what=self.unit.capitalize())
        add_logps(causal, temperature=1.0)
        examples, validation = self.finished(splits, model=model, cut=cut)
        return OfflineTrainer(
            examples=examples,
            validation=validation,
            # Examples of one pair share its prompt if they are in one step.
            families=self.examples.train.places,
            make_step=partial(self._step, cut=cut, aux_weight=expert_weight(causal)),
            model=model,
            args=completion_arguments(context, config, schedule=self.schedule, batch=in_one(context.spec.batch)),
            processing_class=self.tokenizer,
            callbacks=self.callbacks(checkpoint),
        )

    def untrained_model(self) -> PreTrainedModel | PeftModel:
        """Load the start model, with adapters if configured."""
        context, config = self.context, self.config
        # Adapters begin with random weights, the same ones on each rank.
        set_seed(context.spec.seed)
        model = load_start_model(context, self.tokenizer, whole=config.lora is None, quantization=config.quantization)
        return apply_lora(model, config.lora, task_type="CAUSAL_LM")

    def _step(self, accelerator: Any, *, cut: Cut, aux_weight: float) -> OfflineStep:
        return OfflineStep(
            accelerator=accelerator,
            objective=self.objective,
            cut=cut,
            divides=divides_model(self.context.spec.profile),
            aux_weight=aux_weight,
        )

    def save(self, trainer: OfflineTrainer) -> None:
        """Save `model/` and, with adapters, `adapter/`."""
        save_causal_model(self.context, trainer.model, self.tokenizer)

    def tried_copies(self, context: StageContext) -> TriedCopies:
        """Try the copies on conversations of the training data."""
        sequences = [row[self.token_fields[0]] for row in self.examples.train.kept]
        return tried_causal_copies(context, self.config, self.untrained_model(), self.tokenizer, sequences)
