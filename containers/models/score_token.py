"""The score token: ends every conversation, and the score is read at its position (`use_cls`).

The chat template writes it, so every program that tokenises messages with the saved tokenizer has it at the end. The
score is read as always: at the last token that is no pad token.
"""

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from containers.harness.errors import BadConfigError
from containers.models.tokenizer_loading import probe_ids

SCORE_TOKEN = "<|cls|>"  # noqa: S105 - no password
_ENDING = "{% if not add_generation_prompt %}" + SCORE_TOKEN + "{% endif %}"


def add_score_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Make the tokenizer end every whole conversation with the score token; return the token's id.

    Raises:
        BadConfigError: a tokenised conversation does not end with the score token as one token.
    """
    if SCORE_TOKEN not in tokenizer.get_vocab():
        tokenizer.add_tokens([AddedToken(SCORE_TOKEN, special=True, normalized=False)], special_tokens=True)
    if not tokenizer.chat_template.endswith(_ENDING):
        # Jinja drops one line break at the end of a template; after the addition it would no longer be at the end.
        tokenizer.chat_template = tokenizer.chat_template.removesuffix("\n") + _ENDING
    token_id = int(tokenizer.convert_tokens_to_ids(SCORE_TOKEN))
    ids = probe_ids(tokenizer)
    if ids.count(token_id) != 1 or ids[-1] != token_id:
        raise BadConfigError(
            f"train_reward_model.use_cls: a conversation does not end with {SCORE_TOKEN} as one token, but with the "
            f"tokens {ids[-4:]}. Leave use_cls out, or use another chat_template."
        )
    return token_id


def give_embedding_row(model: PreTrainedModel, token_id: int) -> None:
    """Give the token a row in the model's embedding: the mean of the rows before it, as a neutral start.

    Many models have more rows than tokens (Qwen3: 151,936 for 151,669), and an unused row is used; else one is added.
    If tokens before it have no row either (Gemma 3's <image_soft_token>), they get the same values, not random ones.
    """
    num_rows = model.get_input_embeddings().weight.shape[0]
    if token_id >= num_rows:
        model.resize_token_embeddings(token_id + 1, mean_resizing=False)
    weight, first = model.get_input_embeddings().weight.data, min(token_id, num_rows)
    weight[first : token_id + 1] = weight[:first].mean(dim=0, dtype=torch.float32).to(weight.dtype)
