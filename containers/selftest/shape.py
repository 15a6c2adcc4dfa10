"""Models of a given shape with random weights, made where they are used: no file is read."""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from containers.contracts.configs.selftest import SelftestRequest
from containers.selftest.probe import NotHereError
from containers.stages.build_base_model import default_chat_template, tokenizer_from_texts

_SMALLEST_VOCABULARY = 260
_TEXT = "The machine multiplies, adds and remembers."


def model_config(request: SelftestRequest, **changes: Any) -> Any:
    """Return transformers' configuration of the run's model.

    Args:
        **changes: other values of its keys.

    Raises:
        NotHereError: the shape is not known here.
    """
    if not request.model:
        raise NotHereError(request.model_note or "the shape of the run's model is not known here")
    values = {**request.model, **changes}
    values.pop("dtype", None)
    return AutoConfig.for_model(values.pop("model_type"), pad_token_id=0, **values)


def causal_model(config: Any, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return a language model, the same on each rank."""
    set_seed(0)
    with device:
        made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    made.generation_config = GenerationConfig(pad_token_id=0)
    return made.eval()


def reward_model(config: Any, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return a reward model, the same on each rank."""
    set_seed(0)
    config.num_labels = 1
    with device:
        made: PreTrainedModel = AutoModelForSequenceClassification.from_config(
            config, dtype=dtype, trust_remote_code=False
        )
    return made.eval()


def any_tokenizer(*, max_length: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer of single bytes: trainers need one, although their examples are tokens already."""
    tokenizer = tokenizer_from_texts([_TEXT], vocabulary_size=_SMALLEST_VOCABULARY, max_length=max_length)
    tokenizer.chat_template = default_chat_template()
    return tokenizer


def drawn(count: int, *, seed: int, words: int) -> list[int]:
    """Return so many token ids, none of them the padding's."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, words, (count,), generator=generator).tolist()
