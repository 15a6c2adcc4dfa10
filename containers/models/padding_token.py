"""The pad token of a reward model from elsewhere whose config names none."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from containers.harness.errors import MissingPrerequisiteError
from containers.models.tokenizer_loading import load_tokenizer, probe_ids


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
