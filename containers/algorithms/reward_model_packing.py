"""Decide whether to pack pairs: test the model on real pairs before it is trained."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from containers.algorithms.reward_model import PackedPairTrainer, Pair, PairTrainer, make_packs, packed_scores
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.data.pairs import Row
from containers.harness.context import StageContext
from containers.models.trial import evaluating, trial
from containers.packing.attention import NAME, packed
from containers.packing.choice import Packing, cannot_pack, packed_in_one
from containers.packing.kernel import kernel_text
from containers.packing.scoring import computed_tokens
from containers.packing_traits import packing_traits, why_pairs_are_padded
from containers.scoring.rounding import allowed_difference, num_layers_of
from containers.scoring.scorer import classifier_of
from containers.token_budgets import pair_pack_tokens

# Enough for a packed row with neighbours. The longest pair is one of them: short ones may fit into a sliding window.
_ASKED_PAIRS = 3


def plan_packing(
    context: StageContext, config: TrainRewardModelConfig, model: PreTrainedModel | PeftModel, rows: Sequence[Row]
) -> Packing[PairTrainer]:
    """Return packs if configured and supported by the model; else padded rows, with a note that says why."""
    batch = context.spec.batch
    tokens = config.pack_tokens or pair_pack_tokens(
        config.max_length,
        per_device_batch_size=batch.per_device_batch_size,
        on_gpu=context.spec.profile.num_gpus > 0,
    )
    pairs = [(row["chosen_ids"], row["rejected_ids"]) for row in rows]
    if not config.pack or cannot_pack(context, "Pairs", reason=why_padded(model, pairs, config, pack_tokens=tokens)):
        return Packing(PairTrainer, batch)
    whole = sum(len(side) for pair in pairs for side in pair)
    computed = sum(map(computed_tokens, pairs))
    context.recorder.note(
        f"Pairs are packed, {tokens:,} tokens at a time. A prompt is computed once for both of its answers, so an "
        f"epoch is {computed:,} tokens; with each answer in its own row it would be {whole:,}, without padding. "
        f"{kernel_text(classifier_of(model))}".rstrip()
    )
    return packed_in_one(PackedPairTrainer, batch, pack_tokens=tokens)


def attention_of(trainer: PairTrainer) -> AbstractContextManager[None]:
    """Context with the attention that the trainer's model needs during training."""
    return packed(classifier_of(trainer.model)) if isinstance(trainer, PackedPairTrainer) else nullcontext()


def why_padded(
    model: PreTrainedModel | PeftModel, pairs: Sequence[Pair], config: TrainRewardModelConfig, *, pack_tokens: int
) -> str:
    """Return why these pairs cannot be packed for this model, as a clause; empty if they can.

    Scores the longest pair and the two shortest, packed and as padded rows. Models whose attention does more than mask
    and weigh (sliding windows, caps, sinks, own positions) give other scores, or an error.
    """
    classifier = classifier_of(model)
    traits = packing_traits(classifier.config.get_text_config().to_dict())
    longest = max(len(side) for pair in pairs for side in pair)
    if reason := why_pairs_are_padded(config, traits, longest=longest):
        return reason
    if not getattr(classifier, "_supports_attention_backend", False):
        return f"the attention of {type(classifier).__name__} is its own, not transformers' attention interface"
    ordered = sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))
    asked = [*ordered[: _ASKED_PAIRS - 1], ordered[-1]]
    with evaluating(model), _as_trained(classifier):
        plain = _padded_scores(model, asked)
        with trial() as tried, packed(classifier):
            found = _packed_scores(model, asked, pack_tokens=pack_tokens)
    if tried.failure:
        return f"{type(classifier).__name__} fails with {NAME}: {tried.failure}"
    difference = float((found - plain).abs().max())
    bound = allowed_difference(plain.dtype, plain.flatten().tolist(), num_layers=num_layers_of(classifier))
    if not difference <= bound:
        return f"{type(classifier).__name__} scores them {difference:.2g} apart from padded rows, more than {bound:.2g}"
    return ""


def _as_trained(classifier: PreTrainedModel) -> AbstractContextManager[None]:
    """Return the Trainer's autocast: the frozen weights are bfloat16 and the score head float32."""
    if classifier.dtype != torch.bfloat16:
        return nullcontext()
    return torch.autocast(classifier.device.type, dtype=torch.bfloat16)


def _padded_scores(model: Any, pairs: Sequence[Pair]) -> Tensor:
    """Return [pairs, 2] scores, each conversation computed alone."""
    scores = [
        model(input_ids=torch.tensor([list(side)], device=model.device), use_cache=False).logits[0, 0]
        for pair in pairs
        for side in pair
    ]
    return torch.stack(scores).view(-1, 2)


def _packed_scores(model: Any, pairs: Sequence[Pair], *, pack_tokens: int) -> Tensor:
    """Return [pairs, 2] scores in the order of the pairs."""
    packs = make_packs(pairs, max_tokens=pack_tokens)
    scores = torch.cat([packed_scores(model, pack, classifier_of(model)) for pack in packs])
    return scores[torch.tensor([place for pack in packs for place in pack.pairs], device=scores.device).argsort()]
