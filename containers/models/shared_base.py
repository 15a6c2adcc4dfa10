"""Several models on one base in memory: adapters and score heads around the same frozen tensors.

Two models share weights if their layers are other objects around the same tensors. So each has adapters of its own, and
none has to be switched on and off, while the frozen weights are in memory once.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from containers.contracts.digests import DamagedArtifactError, read_manifest
from containers.contracts.names import ADAPTER_FOLDER
from containers.models.adapters import is_adapted_model, put_adapter_on
from containers.models.quantized import marked_like, quantized_parts
from containers.models.weights import SCORE_HEAD


def adapter_on(artifact: Path, base_digest: str) -> Path | None:
    """Return the adapter of a reward model that was trained from the very model with that digest; else None.

    Args:
        artifact: what train_reward_model left; a folder without its manifest has none.
    """
    adapter = artifact / ADAPTER_FOLDER
    if not is_adapted_model(adapter):
        return None
    if LoraConfig.from_pretrained(str(adapter)).trainable_token_indices:
        return None  # its vocabulary has a row more
    try:
        lineage = read_manifest(artifact).lineage
    except DamagedArtifactError:
        return None
    is_of_base = any(entry.name == "start_model" and entry.digest == base_digest for entry in lineage)
    return adapter if is_of_base else None


def sharing_classifier(base: PreTrainedModel) -> PreTrainedModel:
    """Return a sequence classifier whose trunk has the weights of `base`, the same tensors, and a head of zeros."""
    trunk: Any = base.base_model
    kept = (*trunk.parameters(), *quantized_parts(trunk))
    memo: dict[int, Any] = {id(part): part for part in kept}
    own = copy.deepcopy(trunk, memo)
    own.config.num_labels = 1
    with torch.device("meta"):
        shell: Any = AutoModelForSequenceClassification.from_config(own.config, trust_remote_code=False)
    shell.config = own.config
    setattr(shell, shell.base_model_prefix, own)
    width = own.config.get_text_config().hidden_size
    head = nn.Linear(width, 1, bias=False, device=base.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    setattr(shell, SCORE_HEAD, head)
    return marked_like(shell.requires_grad_(False), base)


def adapted_classifier(base: PreTrainedModel, adapter: Path, *, learns: bool = False) -> PeftModel:
    """Return the reward model that is an adapter on `base`, with the weights of `base` themselves.

    Args:
        base: a causal language model without adapters; one that gets some later keeps those to itself.
        learns: whether the adapter and the head get gradients.

    Raises:
        MissingPrerequisiteError: the adapter does not fit, is damaged, or has no score head.
    """
    return put_adapter_on(sharing_classifier(base), adapter, learns=learns)
