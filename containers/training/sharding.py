"""A model that the ranks divide among them while they train it (FSDP2), and have whole again afterwards.

Weights, gradients and optimizer states lie divided; a layer is put together for its forward and its backward, and the
Trainer's own code path saves, clips and resumes. The ranks' forwards have to be equally many: each of them puts layers
together, which needs all ranks.
"""

from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from accelerate.utils.operations import convert_to_fp32
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.contracts.hardware import GpuProfile
from containers.harness.errors import BadConfigError, StageError
from containers.harness.recorder import Recorder
from containers.training.checkpoints import CHECKPOINT_PREFIX

Arguments = TypeVar("Arguments", bound=TrainingArguments)


def divides_model(profile: GpuProfile) -> bool:
    """Whether the ranks of this profile divide a model among them."""
    return profile.distribution == "fsdp"


def require_whole_model(profile: GpuProfile) -> None:
    """Refuse a profile by which the ranks would divide a model that writes: each would put it together at each token.

    Raises:
        BadConfigError: it has distribution fsdp.
    """
    if divides_model(profile):
        raise BadConfigError(
            f"Profile {profile.name} has distribution fsdp, and the policy writes completions in every step, for which "
            "each rank needs the whole of it. Train it on a profile with distribution ddp."
        )


def sharding_arguments(profile: GpuProfile) -> dict[str, Any]:
    """Keyword arguments of TrainingArguments by which the Trainer divides its model; none where it does not."""
    if not divides_model(profile):
        return {}
    return {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": True,
            # Each rank writes and reads its own part, so that none needs room for all.
            "state_dict_type": "SHARDED_STATE_DICT",
        },
        # Otherwise the gradients of every accumulated batch but the last would be whole on each rank.
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    }


def ready_to_divide(arguments: Arguments, profile: GpuProfile) -> Arguments:
    """The arguments with what TrainingArguments has no key for; call it before the Trainer is made."""
    if not divides_model(profile):
        return arguments
    if arguments.bf16:
        # Gradients are added up in float32, as with DDP; accelerate itself would take bfloat16.
        arguments.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    if not profile.num_gpus:
        # accelerate divides models over GPUs alone, and takes the ranks for what stands here.
        PartialState().distributed_type = DistributedType.MULTI_GPU
    return arguments


class DividedModelCallback(TrainerCallback):  # type: ignore[misc]
    """Sees to it that the model is divided, and mends what torch and the Trainer do wrongly with one that is.

    torch asks for the mean of gradients, and gloo gives the sum for it without a word (pytorch/pytorch issue 162338).
    The Trainer takes a checkpoint for the best only if its folder is there before a divided model is saved.

    Stands behind SaveCallback, which decides about saving.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any
    ) -> None:
        """Have gradients added up and then divided, and note what lies on this rank.

        Raises:
            StageError: the Trainer left the model whole.
        """
        units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        parameters = list(model.parameters())
        if not units or not all(isinstance(parameter, DTensor) for parameter in parameters):
            raise StageError("The profile has distribution fsdp, and the Trainer did not divide the model.")
        for unit in units:
            unit.set_force_sum_reduction_for_comms(True)
        # As with DDP. An output type of the policy would hold for each layer, and the head would be given float32.
        model.register_forward_hook(lambda module, given, made: convert_to_fp32(made))
        here = sum(parameter.to_local().numel() for parameter in parameters)
        whole = sum(parameter.numel() for parameter in parameters)
        self._recorder.note(
            f"The model is divided over {args.world_size} ranks: {here:,} of {whole:,} parameters lie on the first one."
        )

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Make the folder of the checkpoint that is saved next, which may be the best."""
        if control.should_save:
            Path(args.output_dir, f"{CHECKPOINT_PREFIX}{state.global_step}").mkdir(exist_ok=True)


def whole_model(divided: torch.nn.Module, fresh: torch.nn.Module) -> Any:
    """`fresh` with the trained weights of `divided`, whole on this rank. Every rank must call it.

    Args:
        fresh: the model as it was before it was trained; its frozen weights are right already.

    Raises:
        StageError: the two are not the same model.
    """
    parts = dict(divided.named_parameters())
    for name, weight in fresh.named_parameters():
        if not weight.requires_grad:
            continue
        part = parts.get(name)
        if part is None or part.shape != weight.shape:
            raise StageError(f"The divided model has no weight {name} of the shape {tuple(weight.shape)}.")
        with torch.no_grad():
            weight.copy_(part.full_tensor() if isinstance(part, DTensor) else part)
    return fresh.eval()
