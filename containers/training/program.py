"""The program that every training stage shares: ranks, resume, loop, verification, records.

A stage supplies a `Training`: its examples, its trainer, and what it saves.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback

from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.outcome import Metric
from containers.contracts.pipeline import STAGE_FACTS
from containers.contracts.schedule import ResolvedSchedule
from containers.curve_alarms import AlarmWatch
from containers.data.pairs import PAIR_FILES, Row, RowFiles
from containers.distributed.ranks import is_first_rank, join_ranks, leave_ranks
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.models.loading import num_embedding_rows, parameter_counts
from containers.models.template_losses import TemplateLosses
from containers.scoring.copies import TriedCopies
from containers.training.callbacks import RecorderCallback, SaveCallback, StopCallback
from containers.training.checkpoints import CheckpointManifestCallback, checkpoint_step
from containers.training.copy_trial import try_copies
from containers.training.examples import TrainingExamples, read_training_examples, resolve_training_schedule
from containers.training.kept_layers import KeptLayersCallback
from containers.training.loop import resume_point, train, verify_training
from containers.training.records import Prepared, write_training_records
from containers.training.sharding import DividedModelCallback, divides_model, require_layers, whole_model
from containers.training.start_model import load_start_tokenizer

ConfigT = TypeVar("ConfigT", TrainSftConfig, TrainRewardModelConfig, TrainDpoConfig, TrainPolicyConfig)
PairConfigT = TypeVar("PairConfigT", TrainSftConfig, TrainRewardModelConfig, TrainDpoConfig)


class Training(ABC, Generic[ConfigT]):
    """One training. `run_training` calls its methods in their order here, on every rank unless they say otherwise.

    Args:
        context: the context of the stage.

    Attributes:
        config_type: type of the stage's configuration.
        schedule: the schedule with every number filled in; `prepare` sets it.
        published_step: the step whose weights are published; None: the last one.
        ended_because: why training ended before its last planned step; empty: it did not.
        resumes: this attempt goes on from a checkpoint.

    Raises:
        BadConfigError: the context has the configuration of another stage.
    """

    config_type: type[ConfigT]
    schedule: ResolvedSchedule
    published_step: int | None = None
    ended_because: str = ""
    resumes: bool = False

    def __init__(self, context: StageContext) -> None:
        config = context.spec.config
        if not isinstance(config, self.config_type):
            raise BadConfigError(f"{context.spec.stage} was given the config of {config.stage}.")
        self.context = context
        self.config: ConfigT = config

    @property
    @abstractmethod
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""

    @abstractmethod
    def prepare(self) -> Prepared:
        """Read the examples, after the ranks have joined. Cheap checks come first, then `try_copies`."""

    def try_copies(self) -> None:
        """Save, load and compare the copies of a model before the first step, unless an earlier attempt did.

        Raises:
            BadConfigError: a copy is not the model that was saved.
        """
        if not self.resumes:
            try_copies(self.context, self.tried_copies)

    @abstractmethod
    def tried_copies(self, context: StageContext) -> TriedCopies:
        """Move the weights of a fresh model, save it as `save` does, load its copies and compare; first rank only.

        Args:
            context: as the stage's own, with another output.
        """

    @abstractmethod
    def build_trainer(self, checkpoint: Path | None) -> Any:
        """Build the Trainer with a model that is not trained yet.

        Args:
            checkpoint: the one from which training resumes; None: it starts at step 0.
        """

    def callbacks(
        self, checkpoint: Path | None, *, with_state: Sequence[TrainerCallback] = ()
    ) -> list[TrainerCallback]:
        """Return the callbacks: saving, curves, checkpoint manifests, the stop, and TensorBoard on the first rank.

        Args:
            checkpoint: the one from which training resumes.
            with_state: these write files into the checkpoint, before its manifest.
        """
        context, config = self.context, self.config
        watch = AlarmWatch() if STAGE_FACTS[context.spec.stage].trains == "policy" else None
        callbacks = [
            SaveCallback(self.schedule),
            RecorderCallback(context.recorder, planned_steps=self.schedule.num_steps, watch=watch),
            *with_state,
            CheckpointManifestCallback(context.spec, context.recorder, limit=config.schedule.save_total_limit),
            StopCallback(context.stop, context.recorder),
        ]
        if config.gradient_checkpointing not in (True, False):
            callbacks.append(KeptLayersCallback(config.gradient_checkpointing, context.recorder))
        if divides_model(context.spec.profile):
            callbacks.append(DividedModelCallback(context.recorder))
        if is_first_rank():
            from torch.utils.tensorboard import SummaryWriter

            # TensorBoard hides the steps after this one that an earlier attempt wrote.
            writer = SummaryWriter(str(context.tensorboard), purge_step=(checkpoint_step(checkpoint) or 0) + 1)
            callbacks.append(TensorBoardCallback(writer))
        return callbacks

    @property
    def last_step(self) -> int:
        """The step after which training ends; known once it has ended, or a checkpoint says so."""
        return self.schedule.num_steps

    def while_training(self, trainer: Any) -> AbstractContextManager[Any]:
        """Context that is open during training."""
        return nullcontext()

    @abstractmethod
    def untrained_model(self) -> PreTrainedModel | PeftModel:
        """Load the model as it was before training; a divided model's weights are gathered into it."""

    def publish(self, trainer: Any) -> None:
        """Put the weights in place that the stage publishes, on every rank, before verification."""

    def judge(self, trainer: Any) -> None:
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

    def close(self) -> None:
        """End what the training started, also after a failure."""


class PairTraining(Training[PairConfigT]):
    """A training on examples that are made of pairs, with the start model's tokenizer.

    Attributes:
        token_fields: the fields of an example that hold token ids; each alone must fit.
        unit: name of the examples, in the plural.
        files: the rows that examples are made of.
        score_token_id: a token that gets a row in the model's embedding.
    """

    token_fields: tuple[str, ...]
    unit: str
    files: RowFiles = PAIR_FILES
    score_token_id: int | None = None

    @abstractmethod
    def tokenised(self, rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        """Return the fields of each row's examples; `losses` counts what the chat template leaves out."""

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Load the start model's tokenizer, with the configured chat template."""
        return load_start_tokenizer(self.context, chat_template=self.config.chat_template, section=self.config.stage)

    def read_examples(self) -> TrainingExamples:
        """Tokenise the rows; see `read_training_examples`."""
        start = self.context.input_path("start_model")
        return read_training_examples(
            self.context,
            self.config,
            self.tokenizer,
            tokenised=self.tokenised,
            token_fields=self.token_fields,
            num_rows=num_embedding_rows(start, score_token_id=self.score_token_id),
            unit=self.unit,
            files=self.files,
        )

    def prepare(self) -> Prepared:
        """Tokenise the rows, fill in the schedule, and try the copies."""
        self.tokenizer = self.load_tokenizer()
        self.examples = self.read_examples()
        self.schedule = resolve_training_schedule(self.context, self.config, self.examples)
        self.try_copies()
        train = self.examples.train
        return Prepared(self.schedule, len(train.kept), train.num_over_long, train.num_without_row)

    def shared_metrics(self, trainer: Any, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return the last logged training loss, steps, parameters, and the numbers of examples left out."""
        loss = float(next(entry["loss"] for entry in reversed(trainer.state.log_history) if "loss" in entry))
        train, validation, unit = self.examples.train, self.examples.validation, self.unit
        return (
            Metric(name="train_loss", value=loss, unit="nats"),
            Metric(name="num_steps", value=trainer.state.global_step, unit="steps"),
            Metric(name="trainable_parameters", value=parameters[0], unit="parameters"),
            Metric(name="total_parameters", value=parameters[1], unit="parameters"),
            Metric(name=f"train_{unit}_left_out", value=train.num_left_out, unit=unit),
            Metric(name=f"validation_{unit}_left_out", value=validation.num_left_out, unit=unit),
        )


def run_training(context: StageContext, training: Training[Any]) -> tuple[Metric, ...]:
    """Train from the newest valid checkpoint to the last step, verify, and save.

    Raises:
        StageError: the training failed verification; see `loop`.
    """
    started_at_s = time.monotonic()
    join_ranks(context)
    try:
        checkpoint = resume_point(context)
        training.resumes = checkpoint is not None
        if divides_model(context.spec.profile):
            require_layers(context.input_path("start_model"))
        prepared = training.prepare()
        num_steps = prepared.schedule.num_steps
        trainer = training.build_trainer(checkpoint)
        # It would print every log line; the recorder has the curves and reports progress.
        trainer.remove_callback(PrinterCallback)
        parameters = parameter_counts(trainer.model)
        with training.while_training(trainer):
            train(context, trainer, checkpoint, planned_steps=num_steps, last_step=training.last_step)
            training.publish(trainer)
    finally:
        training.close()
    if divides_model(context.spec.profile):
        trainer.model = whole_model(trainer.model, training.untrained_model())
    verify_training(trainer, last_step=training.last_step)
    training.judge(trainer)
    if leave_ranks():
        write_training_records(
            context,
            trainer=trainer,
            algorithm=training.algorithm,
            prepared=prepared,
            parameters=parameters,
            started_at_s=started_at_s,
            resumed_from_step=checkpoint_step(checkpoint),
            published_step=training.published_step,
            ended_because=training.ended_because,
        )
        training.save(trainer)
    return training.metrics(trainer, parameters)
