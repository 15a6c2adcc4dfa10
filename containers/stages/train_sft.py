"""train_sft: fine-tune on demonstrations, or on the completions of the training pairs; loss on the answers only."""

from collections.abc import Sequence

from containers.algorithms.likelihood_objective import Likelihood
from containers.algorithms.offline_step import Example
from containers.algorithms.offline_trainer import OfflineTrainer
from containers.algorithms.offline_training import OfflineTraining
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.outcome import Metric
from containers.data.pairs import DEMONSTRATION_FILES, Row
from containers.harness.context import StageContext
from containers.models.template_losses import TemplateLosses
from containers.training.completion_tokens import tokenised_completions, tokenised_conversations
from containers.training.program import run_training
from containers.training.records import peak_memory_bytes


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train, verify, and save `model/` (merged) and, with LoRA, `adapter/`. Keeps the lowest eval_loss."""
    return run_training(context, SftTraining(context))


class SftTraining(OfflineTraining[TrainSftConfig]):
    """Supervised fine-tuning on the answers of demonstrations, if the run has any.

    Else on the prompt with the chosen completion of each pair, or with both.
    """

    config_type = TrainSftConfig
    token_fields, unit = ("input_ids",), "completions"
    objective = Likelihood()

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._has_demonstrations = context.has_input(DEMONSTRATION_FILES.role)
        if self._has_demonstrations:
            self.files = DEMONSTRATION_FILES

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
        what = "demonstrations" if self._has_demonstrations else f"{self.config.completions} completions"
        return f"supervised fine-tuning on {what}"

    def tokenised(self, rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        """Return the tokens of each completion of the rows, or of each conversation with all its answers."""
        if self._has_demonstrations:
            conversations = [row["prompt"] + row["completion"] for row in rows]
            return tokenised_conversations(
                self.tokenizer, conversations, max_length=self.config.max_length, losses=losses
            )
        sides = ("chosen", "rejected") if self.config.completions == "both" else ("chosen",)
        completions = [(row["prompt"], row[side]) for row in rows for side in sides]
        found = iter(tokenised_completions(self.tokenizer, completions, losses=losses))
        return [[next(found) for _ in sides] for _ in rows]

    def examples_of(self, rows: Sequence[Row]) -> list[Example]:
        """Return an example for each row of tokens; a first token that nothing predicts is its prompt."""
        made = []
        for row in rows:
            mask = row["completion_mask"]
            start = max(mask.index(1) if 1 in mask else len(mask) - 1, 1)
            counted = [token == 1 for token in mask[start:]]
            made.append(
                Example(
                    row["input_ids"][:start],
                    (row["input_ids"][start:],),
                    counted=() if all(counted) else (counted,),
                )
            )
        return made

    def metrics(self, trainer: OfflineTrainer, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return the losses, and the numbers of completions left out."""
        count = len(self.examples.validation.kept)
        return (
            Metric(name="validation_loss", value=trainer.state.best_metric, unit="nats", count=count),
            *self.shared_metrics(trainer, parameters),
            Metric(name="peak_memory", value=peak_memory_bytes(), unit="bytes"),
        )
