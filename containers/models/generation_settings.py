"""Mends the generation config that came with a model's files, where it could not be saved with the trained weights."""

import re
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from containers.formatting import one_line

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def mend_generation_config(model: PreTrainedModel) -> str:
    """Make the model's generation config one that transformers saves; says what was changed, empty where nothing was.

    Training changes it (the pad token), and transformers then refuses to save one that contradicts itself, at the end
    of the training. Llama 2's first files do: a temperature of 0.9 and a top-p of 0.6, and do_sample false. Our stages
    take nothing but token ids from it; whoever uses the trained model takes the rest.
    """
    own = model.generation_config
    if own is None or not (issue := _why_not_saved(own)):
        return ""
    for name in _TOKEN_IDS:  # old Llama files have a pad token of -1
        if isinstance(token_id := getattr(own, name), int) and token_id < 0:
            setattr(own, name, None)
    found = f"The model's generation_config.json contradicts itself ({issue}) and could not be saved after training"
    if not _why_not_saved(own):
        return f"{found}: token ids below zero are taken out. Nothing that is trained or judged depends on them."
    sampled = GenerationConfig.from_dict({**own.to_dict(), "do_sample": True})
    if not _why_not_saved(sampled):
        model.generation_config = sampled
        return f"{found}: do_sample is now true, the rest is kept. Nothing that is trained or judged depends on it."
    ids: dict[str, Any] = {name: getattr(own, name) for name in _TOKEN_IDS}
    model.generation_config = GenerationConfig(**ids)
    return f"{found}: only its token ids are kept. Nothing that is trained or judged depends on the rest."


def _why_not_saved(config: GenerationConfig) -> str:
    """The settings that transformers finds wrong with it; empty where it would save it."""
    try:
        config.validate(strict=True)
    except ValueError as error:
        return ", ".join(re.findall(r"^- `(\w+)`:", str(error), re.MULTILINE)) or one_line(str(error), 120)
    return ""
