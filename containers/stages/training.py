"""What every training stage shares around the Hugging Face Trainer: ranks, arguments, curves, guards, records."""

import contextlib
import json
import math
import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback

from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.names import CURVES_FILE, EVENTS_FILE, TRAINING_INFO_FILE
from containers.contracts.records import TrainingInfo
from containers.contracts.stage_configs import (
    OptimizerSettings,
    TrainingSchedule,
    TrainPolicyConfig,
    TrainRewardModelConfig,
    TrainSftConfig,
)
from containers.schedule import ResolvedSchedule
from containers.stages.checkpoints import CheckpointManifestCallback, newest_valid_checkpoint
from containers.stages.context import StageContext
from containers.stages.errors import BadConfigError, MissingPrerequisiteError, StageError
from containers.stages.models import check_finite, compute_device
from containers.stages.recorder_callback import RecorderCallback

Item = TypeVar("Item")
Value = TypeVar("Value")

TRAINER_STATE_FILE = "trainer_state.json"
_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "tokenizers")


def join_ranks(context: StageContext) -> None:
    """Join this process with the other ranks that torchrun started, and check that they are as many as planned.

    Without this, ranks on a CPU train alone, each into the same folder, and exit with 0; and the Trainer ignores the
    collective time-out there.

    Raises:
        MissingPrerequisiteError: another number of ranks than the batch plan has.
    """
    wanted, found = context.spec.batch.num_processes, int(os.environ.get("WORLD_SIZE", "1"))
    if wanted != found:
        raise MissingPrerequisiteError(
            f"The batch plan has {wanted} ranks, this process is one of {found}. "
            f"Start the stage through its entry program, which starts torchrun where several ranks are planned."
        )
    device = compute_device(context.spec.profile)
    if found > 1 and device.type == "cpu" and not distributed.is_initialized():
        timeout = timedelta(seconds=context.spec.profile.collective_timeout_s)
        distributed.init_process_group("gloo", timeout=timeout)


def wait_for_all_ranks() -> None:
    """Return when every rank is here; at once where there is only one."""
    if distributed.is_initialized():
        distributed.barrier()


def is_first_rank() -> bool:
    """Whether this rank writes outputs."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def spread_over_ranks(items: Sequence[Item], work: Callable[[list[Item]], list[Value]]) -> list[Value]:
    """The values that `work` gives for all items, in order, on every rank; each rank works on every n-th item."""
    if not distributed.is_initialized():
        return work(list(items))
    num_ranks = distributed.get_world_size()
    parts: list[list[Value]] = [[] for _ in range(num_ranks)]
    distributed.all_gather_object(parts, work(list(items[distributed.get_rank() :: num_ranks])))
    return [parts[index % num_ranks][index // num_ranks] for index in range(len(items))]


def common_arguments(
    context: StageContext,
    *,
    optimizer: OptimizerSettings,
    schedule: ResolvedSchedule,
    batch: BatchPlan,
    evaluates: bool = True,
) -> dict[str, Any]:
    """Keyword arguments of TrainingArguments that all training stages share.

    The best checkpoint is the one with the lowest `eval_loss`. Same-seed runs were bit-exact on CPU without the
    Trainer's full determinism, which slows GPUs down; so it stays off.

    Args:
        evaluates: False where the trainer has nothing to evaluate on; the last checkpoint then counts.
    """
    profile, seed = context.spec.profile, context.spec.seed
    limit = _training_schedule(context).save_total_limit
    arguments: dict[str, Any] = {
        "output_dir": str(context.checkpoints),
        "max_steps": schedule.num_steps,
        "per_device_train_batch_size": batch.per_device_batch_size,
        "per_device_eval_batch_size": profile.max_per_device_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
        "learning_rate": optimizer.learning_rate,
        "lr_scheduler_type": optimizer.scheduler,
        "warmup_steps": math.ceil(optimizer.warmup_fraction * schedule.num_steps),
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "logging_strategy": "steps",
        "logging_steps": schedule.logging_steps,
        "logging_first_step": True,
        # The filter would replace a NaN loss by a number, and a dead run would look alive.
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": schedule.save_steps,
        "save_total_limit": limit + 1 if evaluates else limit,
        "eval_strategy": "no",
        "seed": seed,
        "data_seed": seed,
        # TensorBoard is a callback of ours, which writes where the stage may write; MLflow is fed from outside.
        "report_to": "none",
        "disable_tqdm": True,
        **_hardware_arguments(profile, batch),
    }
    return arguments | _evaluation_arguments(schedule) if evaluates else arguments


def _evaluation_arguments(schedule: ResolvedSchedule) -> dict[str, Any]:
    return {
        "eval_strategy": "steps",
        "eval_steps": schedule.eval_steps,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": False,
    }


def _hardware_arguments(profile: GpuProfile, batch: BatchPlan) -> dict[str, Any]:
    """What a GPU can and a CPU cannot, and how ranks find each other."""
    on_gpu = profile.num_gpus > 0
    return {
        "bf16": on_gpu and profile.precision == "bf16",
        "tf32": profile.tf32 if on_gpu else None,
        "use_cpu": not on_gpu,
        "ddp_backend": None if on_gpu or batch.num_processes == 1 else "gloo",
        "ddp_timeout": profile.collective_timeout_s,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": on_gpu,
    }


def training_callbacks(context: StageContext, *, planned_steps: int) -> list[TrainerCallback]:
    """Curves and guards, checkpoint manifests, and TensorBoard files on the first rank."""
    callbacks = [
        RecorderCallback(context.recorder, planned_steps=planned_steps),
        CheckpointManifestCallback(context.spec),
    ]
    if is_first_rank():
        from torch.utils.tensorboard import SummaryWriter

        callbacks.append(TensorBoardCallback(SummaryWriter(str(context.tensorboard))))
    return callbacks


def quieten(trainer: Any) -> None:
    """Take the Trainer's printing of every log line away; the recorder has the curves, and says how far it is."""
    trainer.remove_callback(PrinterCallback)


def resume_point(context: StageContext) -> Path | None:
    """The newest checkpoint of an earlier attempt that is whole, the same on every rank; None starts at step 0."""
    found: list[Path | None] = [None]
    if is_first_rank():
        found = [newest_valid_checkpoint(context.checkpoints, spec=context.spec, recorder=context.recorder)]
    if distributed.is_initialized():
        distributed.broadcast_object_list(found)
    if found[0] is not None:
        context.recorder.note(f"Resuming from {found[0].name}.")
    return found[0]


class _AlreadyTrainedError(Exception):
    """The checkpoint holds the last step; there is nothing to train."""


class _StopBeforeFirstStep(TrainerCallback):  # type: ignore[misc]
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        raise _AlreadyTrainedError


def train(trainer: Any, checkpoint: Path | None, *, planned_steps: int) -> None:
    """Train from `checkpoint` to the last step; from a checkpoint of the last step, only take its weights and state.

    The Trainer itself does one step more when it resumes at the end (70 planned, 71 done), so that a stage killed
    between its last checkpoint and its manifest could never be finished.
    """
    resume_from = None if checkpoint is None else str(checkpoint)
    if checkpoint_step(checkpoint) != planned_steps:
        trainer.train(resume_from_checkpoint=resume_from)
        return
    trainer.add_callback(_StopBeforeFirstStep())
    with contextlib.suppress(_AlreadyTrainedError):
        trainer.train(resume_from_checkpoint=resume_from)
    if trainer.args.load_best_model_at_end:
        trainer._load_best_model()


def checkpoint_step(checkpoint: Path | None) -> int | None:
    """The optimizer step of a checkpoint folder: 40 for `checkpoint-40`."""
    return None if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def verify_training(trainer: Any, *, planned_steps: int) -> None:
    """Raise unless training did all its steps, kept its best checkpoint, and ended with finite weights.

    The exit code of a Trainer says none of this.

    Raises:
        StageError: fewer steps than planned, or the best checkpoint is gone.
        DivergedError: a weight is not finite.
    """
    state = trainer.state
    if state.global_step != planned_steps:
        raise StageError(f"Training ended at step {state.global_step}, {planned_steps} were planned.")
    best = state.best_model_checkpoint
    if trainer.args.load_best_model_at_end and (best is None or not Path(best).is_dir()):
        raise StageError(f"The best checkpoint ({best}) is gone, so the last weights would have been taken for it.")
    check_finite(trainer.model, name=f"the model after {planned_steps} steps")


def training_info(
    context: StageContext,
    *,
    trainer: Any,
    algorithm: str,
    planned_steps: int,
    num_examples: int,
    parameters: tuple[int, int],
    started_at_s: float,
    examples_left_out: int = 0,
    resumed_from_step: int | None = None,
) -> TrainingInfo:
    """The record of a finished training.

    Args:
        parameters: trainable and total number, as `models.parameter_counts` gives them.
        started_at_s: `time.monotonic()` at the start of this attempt.
    """
    state, keeps_best = trainer.state, bool(trainer.args.load_best_model_at_end)
    return TrainingInfo(
        stage=context.spec.stage,
        algorithm=algorithm,
        num_steps=state.global_step,
        planned_steps=planned_steps,
        num_examples=num_examples,
        examples_left_out=examples_left_out,
        global_batch_size=context.spec.batch.global_batch_size,
        trainable_parameters=parameters[0],
        total_parameters=parameters[1],
        best_step=state.best_global_step if keeps_best else None,
        best_metric_name=trainer.args.metric_for_best_model if keeps_best else "",
        best_metric=state.best_metric if keeps_best else None,
        resumed_from_step=resumed_from_step,
        duration_s=time.monotonic() - started_at_s,
        peak_memory_bytes=peak_memory_bytes(),
        device=_device_name(),
        precision=context.spec.profile.precision,
        versions=(("python", platform.python_version()), *((name, metadata.version(name)) for name in _PACKAGES)),
    )


def write_training_records(context: StageContext, *, trainer: Any, info: TrainingInfo) -> None:
    """Write training_info.json, trainer_state.json and curves.jsonl into the artifact."""
    (context.output / TRAINING_INFO_FILE).write_text(info.model_dump_json(indent=2), encoding="utf-8")
    state_file = context.output / TRAINER_STATE_FILE
    trainer.state.save_to_json(str(state_file))
    state = json.loads(state_file.read_text(encoding="utf-8"))
    if state.get("best_model_checkpoint"):
        # The Trainer writes this machine's path; the same run elsewhere must give the same artifact.
        state["best_model_checkpoint"] = Path(state["best_model_checkpoint"]).name
    state_file.write_text(json.dumps(state, indent=2), encoding="utf-8")
    write_curves(context)


def write_curves(context: StageContext) -> None:
    """Copy the metrics lines of the events into curves.jsonl, one point per step and set of names.

    An attempt that went on from a checkpoint records some steps a second time; the later line counts.
    """
    points: dict[tuple[int, tuple[str, ...]], str] = {}
    events = context.work / EVENTS_FILE
    for line in events.read_text(encoding="utf-8").splitlines() if events.is_file() else ():
        event = json.loads(line)
        if event["type"] == "metrics":
            names = sorted([*event["values"], *event.get("non_finite", {})])
            points[(event["step"], tuple(names))] = line
    lines = [line for _, line in sorted(points.items(), key=lambda item: item[0])]
    (context.output / CURVES_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def peak_memory_bytes() -> int:
    """Peak memory of this rank: allocated on its GPU, or resident where there is no GPU."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"


def _training_schedule(context: StageContext) -> TrainingSchedule:
    config = context.spec.config
    if not isinstance(config, TrainSftConfig | TrainRewardModelConfig | TrainPolicyConfig):
        raise BadConfigError(f"{config.stage} trains nothing, so it has no schedule.")
    return config.schedule
