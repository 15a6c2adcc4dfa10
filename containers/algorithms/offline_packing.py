"""The packs of given completions, or padded rows for a model that packs cannot compute."""

from collections.abc import Sequence
from functools import partial

from transformers import PreTrainedModel

from containers.algorithms.completion_packing import why_padded
from containers.algorithms.offline_step import Example
from containers.contracts.hardware import BatchPlan
from containers.harness.context import StageContext
from containers.packing.choice import cannot_pack
from containers.packing.kernel import kernel_text
from containers.packing.logps import Cut, completion_packs
from containers.packing.padded import padded_rows_of
from containers.packing_traits import CompletionConfig, longest_conversation
from containers.token_budgets import example_pack_tokens


def plan_offline_packing(
    context: StageContext,
    config: CompletionConfig,
    model: PreTrainedModel,
    examples: Sequence[Example],
    *,
    what: str,
) -> Cut:
    """Return what cuts the examples into packs, if the model supports them; else into padded rows, and note why.

    Args:
        model: the causal model, with its adapters in place.
        what: `Completions` or `Pairs`, for the notes.
    """
    width, batch = len(examples[0].completions), context.spec.batch
    reason = why_padded(model, [example.prompt for example in examples], config)
    if not config.pack or cannot_pack(context, what, reason=reason):
        return partial(padded_rows_of, at_a_time=width * batch.per_device_batch_size)
    tokens = config.pack_tokens or example_pack_tokens(
        width * longest_conversation(config),
        per_device_batch_size=batch.per_device_batch_size,
        on_gpu=context.spec.profile.num_gpus > 0,
    )
    context.recorder.note(
        f"{what} are packed, {tokens:,} tokens at a time, without padding; those of one prompt share it. "
        f"{kernel_text(model)}".rstrip()
    )
    return partial(completion_packs, max_tokens=tokens, num_together=width)


def in_one(batch: BatchPlan) -> BatchPlan:
    """Return the plan with one batch of all of a rank's examples in a step; packs, or padded rows, divide it."""
    of_a_step = batch.per_device_batch_size * batch.gradient_accumulation_steps
    return batch.model_copy(update={"per_device_batch_size": of_a_step, "gradient_accumulation_steps": 1})


def expert_weight(model: PreTrainedModel) -> float:
    """Return the weight that the model's configuration gives the loss by which its experts are balanced; 0: none."""
    return getattr(model.config.get_text_config(), "router_aux_loss_coef", None) or 0.0
