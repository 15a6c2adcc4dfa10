"""The training of a policy on pairs by any loss of the DPO family: its examples, its trainer, and what it leaves."""

from collections.abc import Sequence
from dataclasses import replace

from peft import PeftModel
from transformers import PreTrainedModel
from trl.trainer.utils import disable_dropout_in_model

from containers.algorithms.offline_step import Example
from containers.algorithms.offline_trainer import OfflineTrainer
from containers.algorithms.offline_training import OfflineTraining
from containers.algorithms.preference_objective import Preference
from containers.algorithms.reference_logps import reference_of
from containers.contracts.configs.preference_losses import contradictions
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.outcome import Metric
from containers.data.pairs import Row
from containers.distributed.devices import compute_dtype
from containers.harness.errors import BadConfigError, BadDataError
from containers.models.template_losses import TemplateLosses
from containers.packing.logps import Cut
from containers.training.completion_tokens import tokenised_completions
from containers.training.records import Prepared, peak_memory_bytes


class PreferenceTraining(OfflineTraining[TrainDpoConfig]):
    """Training of a policy on pairs, so that chosen completions become likelier than rejected ones."""

    config_type = TrainDpoConfig
    token_fields, unit = ("chosen_ids", "rejected_ids"), "pairs"

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
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
        found = iter(
            tokenised_completions(
                self.tokenizer,
                [(row["prompt"], row[side]) for row in rows for side in ("chosen", "rejected")],
                setting=f"{self.config.stage}.chat_template",
                losses=losses,
            )
        )
        made = []
        for _ in rows:
            chosen, rejected = next(found), next(found)
            start = chosen["completion_mask"].count(0)
            pair = {"chosen_ids": chosen["input_ids"], "rejected_ids": rejected["input_ids"], "prompt_tokens": [start]}
            made.append([pair])
        return made

    @property
    def objective(self) -> Preference:
        """The configured loss."""
        return Preference(self.config.method)

    def examples_of(self, rows: Sequence[Row]) -> list[Example]:
        """Return an example for each pair; for kto with completions to another prompt."""
        made = pair_examples(rows)
        return with_mismatched(made, max_length=self.config.max_length) if self.config.loss == "kto" else made

    def finished(
        self, splits: list[list[Example]], *, model: PreTrainedModel | PeftModel, cut: Cut
    ) -> list[list[Example]]:
        """Switch dropout off, and return the pairs with their reference, if the loss has one."""
        disable_dropout_in_model(model)
        if not self.config.method.has_reference:
            return splits
        dtype = compute_dtype(self.context.spec.profile)
        return reference_of(self.context, splits, model=model, cut=cut, dtype=dtype)

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


def pair_examples(rows: Sequence[Row]) -> list[Example]:
    """Return an example for each tokenised pair."""
    made = []
    for row in rows:
        (start,) = row["prompt_tokens"]
        made.append(Example(row["chosen_ids"][:start], (row["chosen_ids"][start:], row["rejected_ids"][start:])))
    return made


def with_mismatched(examples: Sequence[Example], *, max_length: int) -> list[Example]:
    """Return the examples, each with the completions of the next example that has another prompt.

    KTO estimates its KL by them, since they come from no policy that saw the prompt. The paper takes them from the same
    batch; the next example of the data does not depend on how batches are cut, and its reference is known before.

    Args:
        max_length: a longer conversation is cut at its end.

    Raises:
        BadDataError: all prompts are the same.
    """
    count = len(examples)
    made = []
    for place, example in enumerate(examples):
        others = (examples[(place + step) % count] for step in range(1, count))
        other = next((other for other in others if other.prompt != example.prompt), None)
        if other is None:
            raise BadDataError(
                "All pairs have the same prompt, and kto compares completions to their own prompt with completions to "
                "other ones. Use another train_dpo.loss, or data with several prompts."
            )
        room = max(max_length - len(example.prompt), 1)
        made.append(replace(example, mismatched=tuple(ids[:room] for ids in other.completions)))
    return made
