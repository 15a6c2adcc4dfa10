"""Traits in a model's configuration that prevent packed rows: one rule for stages and plan.

A stage then tries the model itself on its own rows; only that detects a model whose code has its own attention.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from containers.contracts.configs.compute_reference import ComputeReferenceConfig
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig

CompletionConfig: TypeAlias = TrainPolicyConfig | TrainSftConfig | ComputeReferenceConfig | TrainDpoConfig
_PLAIN_LAYERS = {"full_attention", "sliding_attention"}


class PackingTraits(BaseModel):
    """Settings with which packed rows cannot be computed, under the names of transformers' config.json.

    Where `layer_types` is left out, every layer has the window, if there is one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    sliding_window: int | None = None
    use_sliding_window: bool = True
    layer_types: tuple[str, ...] | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    logit_scale: float | None = None
    logits_scaling: float | None = None
    router_aux_loss_coef: float | None = None

    def attention_hindrance(self, *, longest: int) -> str:
        """Why attention over at most `longest` tokens cannot be packed, as a clause; empty where it can."""
        kinds = set(self.layer_types or ("sliding_attention",))
        window = self.sliding_window if self.use_sliding_window else None
        if window is not None and "sliding_attention" in kinds and window < longest:
            return f"it attends over a window of {window:,} tokens, fewer than a conversation may have"
        if kinds - _PLAIN_LAYERS:
            return f"it has layers that are no plain attention: {', '.join(sorted(kinds - _PLAIN_LAYERS))}"
        return "its attention caps its logits" if self.attn_logit_softcapping else ""

    def head_hindrance(self) -> str:
        """Why log-probabilities of packed rows cannot be computed, as a clause; empty where they can."""
        if self.router_aux_loss_coef:
            return "the load of its experts is balanced over whole batches, which packs are not"
        scales = {self.logit_scale, self.logits_scaling} - {None, 1.0}
        return "its logits are scaled or capped" if scales or self.final_logit_softcapping else ""


PLAIN = PackingTraits()


def packing_traits(content: Mapping[str, Any]) -> PackingTraits:
    """The traits in the text part of a config.json; no traits where they cannot be read."""
    try:
        return PackingTraits.model_validate(content)
    except ValidationError:
        return PLAIN


def why_pairs_are_padded(config: TrainRewardModelConfig, traits: PackingTraits, *, longest: int) -> str:
    """Why the reward model's pairs are computed as padded rows, as a clause; empty where they are packed.

    Args:
        longest: tokens of the longest conversation.
    """
    if not config.pack:
        return "pack is false"
    if config.zero_sum_penalty:
        return "zero_sum_penalty is about a whole batch, whose packs are computed one by one"
    return traits.attention_hindrance(longest=longest)


def why_completions_are_padded(config: CompletionConfig, traits: PackingTraits) -> str:
    """Why completions are computed as padded rows, as a clause; empty where they are packed."""
    if not config.pack:
        return "pack is false"
    return traits.head_hindrance() or traits.attention_hindrance(longest=longest_conversation(config))


def longest_conversation(config: CompletionConfig) -> int:
    """Maximum tokens of a prompt with its completion."""
    if isinstance(config, TrainPolicyConfig):
        return config.max_prompt_length + config.max_completion_length
    return config.max_length
