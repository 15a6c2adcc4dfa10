"""Load tokenizers, and refuse those whose tokens the model has not learnt, or that make none."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from containers.formatting import one_line
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.models.chat_template import check_chat_template

# Tried in this order if a tokenizer has no pad token, or one that is also its end of sequence.
_PAD_CANDIDATES = ("<pad>", "<|pad|>", "<|endoftext|>", "<|finetune_right_pad_id|>", "<|fim_pad|>", "<unk>")

# If a larger share of the texts would be left out, the stage fails instead.
_MOST_WITHOUT_ROW = 0.1

# Both roles have a turn, so that the tokens that end each turn occur.
_PROBE = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]


def load_tokenizer(folder: Path, *, origin: str = "", chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder, with a checked chat template and a pad token.

    The pad token differs from the end of sequence if the vocabulary allows it: transformers reads the score at the last
    token that is no pad token.

    Args:
        origin: where the model comes from, for messages; the stage knows only the mounted folder.
        chat_template: replaces the tokenizer's own, and is saved with it.

    Raises:
        MissingPrerequisiteError: there is no tokenizer that can be loaded.
        BadConfigError: it has no chat template, or one that does not pass `check_chat_template`.
    """
    try:
        # Without `trust_remote_code`, transformers prompts on standard input for a folder with code.
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise MissingPrerequisiteError(
            f"{folder} holds no tokenizer that can be loaded ({type(error).__name__}: {one_line(str(error), 200)}). "
            "Put the model's own tokenizer files there."
        ) from error
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if not tokenizer.chat_template:
        raise BadConfigError(
            f"The tokenizer of {origin or folder} has no chat template, so conversations cannot be turned into "
            f"tokens. Start from an instruct model, or put a chat_template.jinja beside its tokenizer files."
        )
    check_chat_template(tokenizer, folder=folder, origin=origin, is_own=chat_template is None)
    if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
        vocabulary = tokenizer.get_vocab()
        choices = (token for token in _PAD_CANDIDATES if token in vocabulary and token != tokenizer.eos_token)
        tokenizer.pad_token = next(choices, tokenizer.eos_token)
    tokenizer.padding_side = "right"
    return tokenizer


def require_own_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, folder: Path) -> None:
    """Refuse a tokenizer with ids that have no embedding row, or without tokens that the model's config names.

    Special tokens that no conversation has may lack a row: Gemma 3's text models share a tokenizer with its vision
    models, and have no row for <image_soft_token>. Another model's tokenizer with as many tokens passes: nothing in the
    files tells it from the right one.

    Raises:
        MissingPrerequisiteError: the tokenizer belongs to another model.
    """
    num_rows, num_tokens = model.get_input_embeddings().weight.shape[0], len(tokenizer)
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if any(token_id >= num_rows for token_id in _occurring_ids(tokenizer)):
        raise MissingPrerequisiteError(
            f"The tokenizer in {folder} is that of another model: it has {num_tokens:,} tokens, the model's embedding "
            f"{num_rows:,} rows. Put the model's own tokenizer files there."
        )
    config = model.config.get_text_config()
    for name in ("bos_token_id", "eos_token_id"):
        named = getattr(config, name, None)
        for token_id in named if isinstance(named, list) else [named]:
            if token_id is not None and token_id > highest:
                raise MissingPrerequisiteError(
                    f"The tokenizer in {folder} is that of another model: the model's {name} is {token_id:,}, and the "
                    f"tokenizer's highest id {highest:,}. Put the model's own tokenizer files there."
                )


def require_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, conversations: Iterable[Sequence[int]]
) -> None:
    """Refuse tokens without a row in the model's embedding: a text may spell a special token.

    Args:
        conversations: token ids.

    Raises:
        BadDataError: a token has no row; names the first such conversation, numbered from 1, and its token.
    """
    num_rows = model.get_input_embeddings().weight.shape[0]
    for number, tokens in enumerate(conversations, start=1):
        if token := token_without_row(tokenizer, tokens, num_rows=num_rows):
            raise BadDataError(
                f"Conversation {number:,} has the token {token}, and the model's embedding has {num_rows:,} rows, none "
                "for it. Remove the token from the text, or leave the text out."
            )


def num_embedding_rows(folder: Path, *, score_token_id: int | None = None) -> int:
    """Number of rows of a model's embedding, from its config; weights of another shape are refused when loaded.

    Args:
        score_token_id: a token that gets a row, as do those before it (`score_token.give_embedding_row`).

    Raises:
        MissingPrerequisiteError: the folder has no readable config.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        num_rows = int(config.get_text_config().vocab_size)
    except Exception as error:
        raise MissingPrerequisiteError(
            f"{folder} holds no config.json that says how many tokens the model has ({type(error).__name__}: "
            f"{one_line(str(error), 200)}). Put the model's own files there."
        ) from error
    return num_rows if score_token_id is None else max(num_rows, score_token_id + 1)


def token_without_row(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], *, num_rows: int) -> str:
    """Return a token among these ids, with its id, that has no row in an embedding of `num_rows`; empty: none."""
    highest = max(tokens, default=-1)
    return f"{tokenizer.convert_ids_to_tokens(highest)} (id {highest:,})" if highest >= num_rows else ""


def spelled_out(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], *, num_rows: int) -> list[int]:
    """Return ids of the same text, in which other tokens spell each special token that has no embedding row.

    Example: 262144, `<image_soft_token>` of Gemma 3, becomes the tokens of "<", "image", "_" and so on.
    """
    spelled: list[int] = []
    for token in tokens:
        if token < num_rows:
            spelled.append(token)
        else:
            text = str(tokenizer.convert_ids_to_tokens(token))
            spelled += tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    return spelled


def without_row_text(without: Sequence[str], *, name: str, num_rows: int, of: str = "the model") -> str:
    """Return a text that counts those left out because they spell a special token without an embedding row.

    Args:
        without: `token_without_row` of each text.
        name: name of the texts, in the plural.
        of: the model that has the embedding.

    Raises:
        BadDataError: more than a tenth are left out: then texts and tokenizer do not belong together.
    """
    found = [token for token in without if token]
    words = f"{len(found):,} of {len(without):,} {name} are left out: they spell a token without a row in {of}'s "
    words += f"embedding of {num_rows:,} rows, the first {found[0]}."
    if len(found) > _MOST_WITHOUT_ROW * len(without):
        raise BadDataError(
            words.replace("are left out: they ", "")
            + f" More than {_MOST_WITHOUT_ROW:.0%} is no accident: put the model's own tokenizer there, take the "
            "token out of the texts, or use a model that knows it."
        )
    return words


def _occurring_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return ids that conversations can have: all but special tokens without a role that the template does not write.

    A text may still spell such a token; its id then appears when the text is tokenised.
    """
    named = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    asked = {int(token_id) for token_id in named if token_id is not None}
    return (set(tokenizer.get_vocab().values()) - special) | asked | set(probe_ids(tokenizer))


def probe_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return token ids of a conversation, a question with its answer, in the tokenizer's chat template."""
    return list(tokenizer.apply_chat_template(_PROBE, tokenize=True, return_dict=True)["input_ids"])
