"""Plan of compute_reference."""

import dataclasses

from containers.contracts.names import StageName
from containers.contracts.schedule import plan_batch
from tasks.plan import estimates
from tasks.plan.figures import Figure, PlanContext, StagePlan, byte_figures, count_figure, time_figure, work_figure
from tasks.plan.limits import kept
from tasks.plan.load import forward_figure
from tasks.plan.offline import offline_head, offline_load, reference_work, why_completions_padded


def plan_compute_reference(context: PlanContext) -> StagePlan:
    """Plan of the log-probabilities under the reference: a forward of each pair."""
    config, stage = context.config.train_dpo, StageName.COMPUTE_REFERENCE
    if config is None:
        return StagePlan(stage, "left out")
    config = config.model_copy(
        update={"pack_tokens": context.config.compute_reference.pack_tokens or config.pack_tokens}
    )
    pairs = kept(context, context.data.train_pairs, StageName.TRAIN_DPO)
    batch = plan_batch(None, context.profile)
    load, why = offline_load(context, config, batch), why_completions_padded(context, config)
    head = offline_head(context, config, load, in_packs=not why)
    work, memory = None, tuple[Figure, ...]()
    if load is not None and head is not None:
        work = None if pairs is None else reference_work(context, config, load, head, pairs)
        parts = estimates.scoring_memory(load.shape, context.profile, tokens=load.forward_tokens, name="reference")
        parts["reference"] = estimates.frozen_bytes(load.shape, load.total, context.profile, config.quantization)
        if config.lora is None:
            # Weights that are trained whole are held in float32.
            parts["reference"] = 4 * load.total
        memory = byte_figures({**parts, "logits": head.memory_bytes})
    return dataclasses.replace(
        context.plan_of(stage),
        figures=(count_figure("training pairs", pairs, "pairs"), forward_figure(load, why, packed="pairs")),
        memory=memory,
        work=work_figure(work, missing=context.missing),
        time=time_figure(context, stage, work, missing=context.missing),
    )
