"""Trainer arguments that all training stages share, from schedule, batch plan and GPU profile."""

import math
from typing import Any

from transformers import TrainingArguments

from containers.contracts.configs.parts.training import OptimizerSettings
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.schedule import ResolvedSchedule
from containers.harness.context import StageContext
from containers.training.sharding import ready_to_divide, sharding_arguments


def common_arguments(
    context: StageContext,
    *,
    optimizer: OptimizerSettings,
    schedule: ResolvedSchedule,
    batch: BatchPlan,
    evaluates: bool = True,
) -> dict[str, Any]:
    """Return the keyword arguments of TrainingArguments that all training stages share.

    The best checkpoint is the one with the lowest `eval_loss`; SaveCallback saves it. The Trainer's full determinism
    stays off: it slows GPUs down, and same-seed runs were bit-exact on CPU without it.

    Args:
        evaluates: False if the trainer has no evaluation data; the last checkpoint is then used.
    """
    profile, seed = context.spec.profile, context.spec.seed
    arguments: dict[str, Any] = {
        "output_dir": str(context.checkpoints),
        "max_steps": schedule.num_steps,
        "per_device_train_batch_size": batch.per_device_batch_size,
        "per_device_eval_batch_size": profile.max_per_device_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
        "learning_rate": optimizer.learning_rate,
        "lr_scheduler_type": optimizer.scheduler,
        "lr_scheduler_kwargs": None,
        "warmup_steps": math.ceil(optimizer.warmup_fraction * schedule.num_steps),
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "logging_strategy": "steps",
        "logging_steps": schedule.logging_steps,
        "logging_first_step": True,
        # The filter would replace a NaN loss by a number and so hide a failed training.
        "logging_nan_inf_filter": False,
        # The Trainer saves only at the last step, because it requires `save_steps` to be a multiple of `eval_steps`.
        # SaveCallback saves at the steps of the schedule.
        "save_strategy": "steps",
        "save_steps": schedule.num_steps,
        # The Trainer would prune before the new checkpoint is known to be whole; see checkpoints.prune.
        "save_total_limit": None,
        "eval_strategy": "no",
        "seed": seed,
        "data_seed": seed,
        # Our own callback writes TensorBoard files where the stage may write; the orchestrator logs to MLflow.
        "report_to": "none",
        "disable_tqdm": True,
        **_hardware_arguments(profile, batch),
    }
    if optimizer.scheduler == "cosine_with_min_lr":
        arguments["lr_scheduler_kwargs"] = {"min_lr_rate": optimizer.minimum_learning_rate_fraction}
    return arguments | _evaluation_arguments(schedule) if evaluates else arguments


def completion_arguments(
    context: StageContext,
    config: TrainSftConfig | TrainDpoConfig | TrainPolicyConfig,
    *,
    schedule: ResolvedSchedule,
    batch: BatchPlan,
    evaluates: bool = True,
) -> TrainingArguments:
    """Return the arguments of a trainer of completions, which computes its packs itself; as of `common_arguments`."""
    recomputes = bool(config.gradient_checkpointing)
    arguments = TrainingArguments(
        **common_arguments(context, optimizer=config.optimizer, schedule=schedule, batch=batch, evaluates=evaluates),
        activation_checkpointing=recomputes,
        activation_checkpointing_kwargs={"use_reentrant": False} if recomputes else None,
        remove_unused_columns=False,
    )
    return ready_to_divide(arguments, context.spec.profile, offload=config.optimizer.offload)


def _evaluation_arguments(schedule: ResolvedSchedule) -> dict[str, Any]:
    return {
        "eval_strategy": "steps",
        "eval_steps": schedule.eval_steps,
        "save_steps": math.ceil(schedule.num_steps / schedule.eval_steps) * schedule.eval_steps,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": False,
    }


def _hardware_arguments(profile: GpuProfile, batch: BatchPlan) -> dict[str, Any]:
    """Return the arguments that depend on the hardware: precision, device, backend and time-out of the ranks."""
    on_gpu = profile.num_gpus > 0
    return {
        "bf16": profile.precision == "bf16",
        "tf32": profile.tf32 if on_gpu else None,
        "use_cpu": not on_gpu,
        "ddp_backend": None if on_gpu or batch.num_processes == 1 else "gloo",
        "ddp_timeout": profile.collective_timeout_s,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": on_gpu,
        **sharding_arguments(profile),
    }
