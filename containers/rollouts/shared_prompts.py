"""Rollout engine: one prefill per prompt; its keys and values are computed and kept once for all completions.

transformers' `generate` takes rows: a prompt with K completions is K equal rows, each computed and kept separately, and
padded on the left to the longest prompt. Here each prompt is computed once without padding, except for its last token.
`generate` then continues from there, so it handles the logits as always (temperature, top-p, stopping, sampling).
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.harness.context import StageContext
from containers.models.trial import trial
from containers.packing.logps import causal_of
from containers.packing.scoring import why_padded
from containers.rollouts.engines import Rollouts, generating_by, where_the_same
from containers.rollouts.prompts import equal_rows
from containers.rollouts.shared_prompt_attention import NAME, SharedPromptLayer, attending_to
from containers.rollouts.trial import TrialRows, allowed_logit_difference


def sharing(policy: Any) -> AbstractContextManager[None]:
    """Make the policy's `generate` compute a prompt once for all its adjacent rows, while this is open.

    It takes `input_ids` [B, L] and `attention_mask` [B, L], padded on the left, and returns the same as before.

    Args:
        policy: a causal model for which `why_each_row` finds no reason, or adapters on one, which are used.
    """
    model = causal_of(policy)

    def generate(*, input_ids: Tensor, attention_mask: Tensor, **named: Any) -> Any:
        plain = type(model).generate
        if int(attention_mask.sum(dim=1).max()) < 2:
            return plain(model, input_ids=input_ids, attention_mask=attention_mask, **named)
        cache = _prefilled(model, input_ids, attention_mask)
        with attending_to(model, cache):
            return plain(model, input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, **named)

    return generating_by(model, generate)


def start(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> Rollouts:
    """Start this engine, or transformers' generate if the two differ; see `start_rollouts`."""
    longest = config.max_prompt_length + config.max_completion_length
    return where_the_same(
        context,
        sharing,
        "with each prompt computed once for all of its completions",
        reason=why_each_row(model, prompts, max_length=longest),
        otherwise="with each prompt computed for each of its completions",
    )


@torch.no_grad()
def _prefilled(model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor) -> Cache:
    """Return the cache of all but the last token of each prompt; a run of equal rows is computed once.

    Runs may differ in their number of rows, if a rank has only some siblings of a prompt. Longer runs are kept as
    several prompts, so that all prompts have the same number of rows.
    """
    runs = equal_rows(input_ids, attention_mask)
    lengths = (attention_mask.sum(dim=1) - 1).tolist()
    siblings, longest = math.gcd(*map(len, runs)), max(lengths)
    prompts = len(input_ids) // siblings
    hidden = torch.zeros(prompts, 1, 1, longest, device=input_ids.device)
    kept: list[tuple[Tensor, ...]] = []
    for run in runs:
        same, length = slice(run.start // siblings, run.stop // siblings), lengths[run.start]
        hidden[same, ..., length:] = -math.inf
        if not length:
            continue
        found = DynamicCache(config=model.config.get_text_config(decoder=True))
        tokens = input_ids[run.start][attention_mask[run.start].bool()][None, :-1]
        model(input_ids=tokens, past_key_values=found, use_cache=True, logits_to_keep=1)
        if not kept:
            both = [(layer.keys, layer.values) for layer in found.layers]
            kept = [tuple(own.new_zeros(prompts, own.shape[1], longest, own.shape[3]) for own in pair) for pair in both]
        for (keys, values), layer in zip(kept, found.layers, strict=True):
            keys[same, :, :length], values[same, :, :length] = layer.keys, layer.values
    num_places = input_ids.shape[1] - 1
    return Cache(
        layers=[
            SharedPromptLayer(keys, values, hidden=hidden.to(keys.dtype), num_places=num_places)
            for keys, values in kept
        ]
    )


def why_each_row(model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, max_length: int) -> str:
    """Return why this causal model must compute a prompt for each completion, as a clause; empty if it need not.

    Generates from the shortest and the longest prompt both ways, and compares the logits.

    Args:
        prompts: token ids of each prompt.
        max_length: maximum tokens of a prompt with its completion.
    """
    if reason := why_padded(model, max_length=max_length):
        return reason
    layers = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    if odd := sorted({type(layer).__name__ for layer in layers} - {DynamicLayer.__name__}):
        return f"its cache does not plainly hold all tokens ({', '.join(odd)})"
    if not model._supports_logits_to_keep():
        return f"{type(model).__name__} computes the logits of all tokens of a prompt"
    return _why_different(model, prompts, max_length=max_length)


def _why_different(model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, max_length: int) -> str:
    """Return why logits of these prompts differ from those of whole rows; empty if they do not."""
    asked = TrialRows.of(model, prompts, max_length=max_length)
    plain = asked.answered()
    with trial() as tried, sharing(model):
        shared = asked.answered()
    if tried.failure:
        return f"{type(model).__name__} fails with {NAME}: {tried.failure}"
    for step, (one, other) in enumerate(zip(shared.logits, plain.logits, strict=False)):
        # Compare rows with equal tokens so far: if two tokens are equally likely, rounding chooses.
        end = asked.width + step
        alike = (shared.sequences[:, :end] == plain.sequences[:, :end]).all(dim=1)
        difference = float((one - other)[alike].abs().max()) if alike.any() else 0.0
        bound = allowed_logit_difference(model, largest=float(other.abs().max()))
        if not difference <= bound:
            return (
                f"logits of {type(model).__name__} are {difference:.2g} apart from whole rows', more than {bound:.2g}"
            )
    return ""
