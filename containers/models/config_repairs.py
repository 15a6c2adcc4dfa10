"""Mends what the files of a model from elsewhere lack or contradict: its pad token and its generation config."""

import re
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from containers.formatting import one_line
from containers.harness.errors import MissingPrerequisiteError
from containers.models.tokenizer_loading import load_tokenizer, probe_ids

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def give_pad_token(model: PreTrainedModel, folder: Path) -> None:
    """Name a pad token in the model's config where it names none, or one that has no row of the embedding (Llama's -1).

    Without one, transformers reads the score at a conversation's very last token, and takes one conversation at a time.
    With one, it reads the last token that is no pad token: that is the same only if no conversation ends with it, so
    the end of sequence, which many tokenizers pad with, will not do.

    Raises:
        MissingPrerequisiteError: every special token may end a conversation, or there is no tokenizer.
    """
    config, num_rows = model.config.get_text_config(), model.get_input_embeddings().weight.shape[0]
    named = getattr(config, "pad_token_id", None)
    if named is not None and 0 <= named < num_rows:
        return
    tokenizer = load_tokenizer(folder)
    last = probe_ids(tokenizer)[-1]
    choices = (token_id for token_id in _candidates(tokenizer) if token_id < num_rows and token_id != last)
    found = next(choices, None)
    if found is None:
        raise MissingPrerequisiteError(
            f"The model in {folder} names no pad_token_id, and its tokenizer has no token to pad batches with: every "
            f"conversation ends with {tokenizer.convert_ids_to_tokens(last)}, and there is no other special token. "
            "Write the id of a token that no conversation ends with into its config.json, as pad_token_id."
        )
    config.pad_token_id = found


def _candidates(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Special tokens, those first that are least likely to end a text; the end of sequence is none of them."""
    special = [token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special]
    asked = (tokenizer.pad_token_id, tokenizer.bos_token_id, *sorted(special), tokenizer.unk_token_id)
    return [int(token_id) for token_id in asked if token_id is not None and token_id != tokenizer.eos_token_id]


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
