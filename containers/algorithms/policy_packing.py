"""The packs of a policy's completions, or padded rows for a model that packs cannot compute."""

from collections.abc import Sequence
from functools import partial

from transformers import PreTrainedModel

from containers.algorithms.completion_packing import why_padded
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.harness.context import StageContext
from containers.packing.choice import cannot_pack
from containers.packing.kernel import kernel_text
from containers.packing.logps import Cut, completion_packs
from containers.packing.padded import padded_rows_of
from containers.token_budgets import completion_pack_tokens


def plan_policy_packing(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> Cut:
    """Return what cuts completions into packs, if the model supports them; else into padded rows, and note why.

    Args:
        prompts: token ids of the prompts that the policy is trained on.
    """
    batch = context.spec.batch
    if not config.pack or cannot_pack(context, "Completions", reason=why_padded(model, prompts, config)):
        return partial(padded_rows_of, at_a_time=batch.per_device_batch_size)
    tokens = config.pack_tokens or completion_pack_tokens(
        config.max_prompt_length,
        config.max_completion_length,
        num_generations=config.num_generations,
        per_device_batch_size=batch.per_device_batch_size,
        on_gpu=context.spec.profile.num_gpus > 0,
    )
    context.recorder.note(
        f"Completions are packed, {tokens:,} tokens at a time, each prompt once for all of its completions. "
        f"{kernel_text(model)}".rstrip()
    )
    return partial(completion_packs, max_tokens=tokens)
