"""The training of a policy on pairs by any loss of the DPO family: its examples, its trainer, and what it leaves."""

from collections.abc import Sequence

from peft import PeftModel
from transformers import PreTrainedModel
from trl.trainer.utils import disable_dropout_in_model

from containers.algorithms.offline_step import Example
from containers.algorithms.offline_trainer import OfflineTrainer
from containers.algorithms.offline_training import OfflineTraining
from containers.algorithms.pair_examples import PAIR_FIELDS, examples_of_pairs, tokenised_pairs
from containers.algorithms.preference_objective import Preference
from containers.algorithms.reference_logps import (
    computed_reference,
    read_reference,
    reference_key,
    start_text,
    with_reference,
)
from containers.contracts.configs.parts.preference_losses import contradictions
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.names import REFERENCE_FILE
from containers.contracts.outcome import Metric
from containers.data.pairs import Row
from containers.distributed.devices import compute_dtype
from containers.harness.errors import BadConfigError
from containers.models.template_losses import TemplateLosses
from containers.packing.logps import Cut, causal_of
from containers.scoring.rounding import num_layers_of
from containers.training.records import Prepared, peak_memory_bytes

# Pairs by which policy and reference are compared before the first step.
_PAIRS_AT_THE_START = 16


class PreferenceTraining(OfflineTraining[TrainDpoConfig]):
    """Training of a policy on pairs, so that chosen completions become likelier than rejected ones."""

    config_type = TrainDpoConfig
    token_fields, unit = PAIR_FIELDS, "pairs"

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
        if self.config.loss == "sft":
            return "fine-tuning on the chosen completions"
        return f"{self.config.loss} loss on pairs, beta {self.config.method.beta:g}"

    def prepare(self) -> Prepared:
        """Tokenise the pairs.

        Raises:
            BadConfigError: parts of the loss contradict each other; says which, all at once.
        """
        if wrong := list(contradictions(self.config.method)):
            raise BadConfigError("\n".join(f"{self.config.stage}.{key}: {text}" for key, text in wrong))
        return super().prepare()

    def tokenised(self, rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        """Return the tokens of both conversations of each pair, and of how many their prompt is."""
        return tokenised_pairs(self.tokenizer, rows, losses=losses)

    @property
    def objective(self) -> Preference:
        """The configured loss."""
        return Preference(self.config.method)

    def examples_of(self, rows: Sequence[Row]) -> list[Example]:
        """Return an example for each pair; for kto with completions to another prompt."""
        return examples_of_pairs(rows, mismatched=self.config.loss == "kto", max_length=self.config.max_length)

    def finished(
        self, splits: list[list[Example]], *, model: PreTrainedModel | PeftModel, cut: Cut
    ) -> list[list[Example]]:
        """Switch dropout off, and return the pairs with what compute_reference found, if the loss has a reference.

        Raises:
            MissingPrerequisiteError: the file is damaged, or of other pairs, tokens or another model.
            StageError: the policy is farther from the reference than rounding explains.
        """
        disable_dropout_in_model(model)
        if not self.config.method.has_reference:
            return splits
        dtype, is_whole = compute_dtype(self.context.spec.profile), self.config.lora is None
        key = reference_key(
            self.context, splits, dtype=dtype, whole_model=is_whole, quantization=self.config.quantization
        )
        values = read_reference(self.context.input_path("reference") / REFERENCE_FILE, key=key, num_splits=len(splits))
        found = [with_reference(split, own) for split, own in zip(splits, values, strict=True)]
        sample = found[0][:_PAIRS_AT_THE_START]
        own = computed_reference(model, sample, cut=cut, dtype=dtype, with_adapters=True)
        self.context.recorder.note(start_text(sample, own, dtype=dtype, num_layers=num_layers_of(causal_of(model))))
        return found

    def metrics(self, trainer: OfflineTrainer, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return loss and accuracy on the validation pairs at the best step, and the numbers of pairs left out."""
        state, count = trainer.state, len(self.examples.validation.kept)
        evaluations = [entry for entry in state.log_history if entry.get("step") == state.best_global_step]
        accuracy = next(entry["eval_accuracy"] for entry in evaluations if "eval_accuracy" in entry)
        return (
            Metric(name="validation_loss", value=state.best_metric, unit="nats", count=count),
            Metric(name="validation_accuracy", value=accuracy, unit="fraction", count=count),
            *self.shared_metrics(trainer, parameters),
            Metric(name="peak_memory", value=peak_memory_bytes(), unit="bytes"),
        )
