"""The program that every training stage shares: ranks, resume, loop, verification, records.

A stage supplies a `Training`: its examples, its trainer, and what it saves.
"""

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from containers.contracts.names import ADAPTER_FOLDER, MODEL_FOLDER
from containers.contracts.outcome import Metric
from containers.contracts.schedule import ResolvedSchedule
from containers.distributed.devices import compute_dtype
from containers.distributed.ranks import join_ranks, leave_ranks
from containers.harness.context import StageContext
from containers.models.loading import parameter_counts, save_adapter, save_merged
from containers.training.checkpoints import checkpoint_step
from containers.training.examples import TrainingExamples
from containers.training.loop import resume_point, silence, train, verify_training
from containers.training.records import training_info, write_training_records
from containers.training.sharding import divides_model, whole_model


@dataclass(frozen=True)
class Prepared:
    """Schedule and numbers of examples of a training, known before its model is built."""

    schedule: ResolvedSchedule
    num_examples: int
    num_over_long: int
    num_without_row: int


class Training(ABC):
    """One training. `run_training` calls its methods in their order here, on every rank unless they say otherwise.

    Args:
        context: the context of the stage.
    """

    def __init__(self, context: StageContext) -> None:
        self.context = context

    @property
    @abstractmethod
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""

    @abstractmethod
    def prepare(self) -> Prepared:
        """Read the examples, after the ranks have joined. Cheap checks come first."""

    @abstractmethod
    def build_trainer(self, checkpoint: Path | None) -> Any:
        """Build the Trainer with a model that is not trained yet.

        Args:
            checkpoint: the one from which training resumes; None: it starts at step 0.
        """

    def while_training(self, trainer: Any) -> AbstractContextManager[Any]:
        """Context that is open during training."""
        return nullcontext()

    @abstractmethod
    def untrained_model(self) -> PreTrainedModel | PeftModel:
        """Load the model as it was before training; a divided model's weights are gathered into it."""

    def judge(self, trainer: Any) -> None:  # noqa: B027 - not every training does
        """Measure the trained model, on every rank, after verification and before the ranks leave."""

    @abstractmethod
    def save(self, trainer: Any) -> None:
        """Write the artifact, on the first rank only."""

    @abstractmethod
    def metrics(self, trainer: Any, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return the metrics for the manifest.

        Args:
            parameters: numbers of trainable and of all parameters.
        """

    def close(self) -> None:  # noqa: B027 - not every training starts something
        """End what the training started, also after a failure."""


def run_training(context: StageContext, training: Training) -> tuple[Metric, ...]:
    """Train from the newest valid checkpoint to the last step, verify, and save.

    Raises:
        StageError: the training failed verification; see `loop`.
    """
    started_at_s = time.monotonic()
    join_ranks(context)
    prepared = training.prepare()
    num_steps = prepared.schedule.num_steps
    try:
        checkpoint = resume_point(context)
        trainer = training.build_trainer(checkpoint)
        silence(trainer)
        parameters = parameter_counts(trainer.model)
        with training.while_training(trainer):
            train(context, trainer, checkpoint, planned_steps=num_steps)
    finally:
        training.close()
    if divides_model(context.spec.profile):
        trainer.model = whole_model(trainer.model, training.untrained_model())
    verify_training(trainer, planned_steps=num_steps)
    training.judge(trainer)
    if leave_ranks():
        info = training_info(
            context,
            trainer=trainer,
            algorithm=training.algorithm,
            planned_steps=num_steps,
            num_examples=prepared.num_examples,
            examples_left_out=prepared.num_over_long,
            examples_without_row=prepared.num_without_row,
            parameters=parameters,
            started_at_s=started_at_s,
            resumed_from_step=checkpoint_step(checkpoint),
        )
        write_training_records(context, trainer=trainer, info=info)
        training.save(trainer)
    return training.metrics(trainer, parameters)


def prepared_of(examples: TrainingExamples, schedule: ResolvedSchedule) -> Prepared:
    """Return the `Prepared` of a training on a fixed number of examples."""
    train_split = examples.train
    return Prepared(schedule, len(train_split.kept), train_split.num_over_long, train_split.num_without_row)


def size_metrics(trainer: Any, parameters: tuple[int, int]) -> tuple[Metric, ...]:
    """Metrics of steps and parameters."""
    return (
        Metric(name="num_steps", value=trainer.state.global_step, unit="steps"),
        Metric(name="trainable_parameters", value=parameters[0], unit="parameters"),
        Metric(name="total_parameters", value=parameters[1], unit="parameters"),
    )


def last_loss(trainer: Any) -> float:
    """Return the last logged training loss."""
    return float(next(entry["loss"] for entry in reversed(trainer.state.log_history) if "loss" in entry))


def save_causal_model(context: StageContext, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write `model/` (adapters merged) and, with adapters, `adapter/`."""
    if isinstance(model, PeftModel):
        origin = context.input("start_model").origin
        save_adapter(model, tokenizer, context.output / ADAPTER_FOLDER, base_model=origin)
    else:
        model.to(compute_dtype(context.spec.profile))
    save_merged(model, tokenizer, context.output / MODEL_FOLDER)
