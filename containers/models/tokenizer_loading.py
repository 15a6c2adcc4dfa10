"""Loads tokenizers, and refuses those that would make other tokens than the model has learnt, or none."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from containers.formatting import one_line
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.models.chat_template import check_chat_template

# Tried in this order where a tokenizer has no pad token, or one that is also its end of sequence.
_PAD_CANDIDATES = ("<pad>", "<|pad|>", "<|endoftext|>", "<|finetune_right_pad_id|>", "<|fim_pad|>", "<unk>")

# More texts than that are not left out.
_MOST_WITHOUT_ROW = 0.1

# Both have a turn, so that what ends each of them is there.
_PROBE = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]


def load_tokenizer(folder: Path, *, origin: str = "", chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder, with a chat template that was tried and a pad token.

    The pad token differs from the end of sequence where the vocabulary has one that can: transformers finds the score's
    position by looking for the last token that is no pad token.

    Args:
        origin: where the model comes from, for messages; a stage sees it in a folder of its own.
        chat_template: takes the place of the tokenizer's own, and is saved with it.

    Raises:
        MissingPrerequisiteError: there is no tokenizer that can be loaded.
        BadConfigError: it has no chat template, or one that does not pass `check_chat_template`.
    """
    try:
        # Where nothing is said of the folder's code, transformers asks on standard input.
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
            f"The tokenizer of {origin or folder} has no chat template, so a conversation has no one way to become "
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
    """Refuse a tokenizer whose ids the model has no rows for, or that lacks tokens which the model's config names.

    Special tokens that no conversation has may be without a row: Gemma 3's text models share a tokenizer with those
    that see, and have no row for its <image_soft_token>. Another model's tokenizer with as many tokens passes: nothing
    in the files tells it from the right one.

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
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    conversations: Iterable[Sequence[int]],
    *,
    name: str = "Conversation",
) -> None:
    """Refuse tokens that the model's embedding has no row for: a text may spell a special token.

    Args:
        conversations: token ids.
        name: what each of them is, for the message; they are numbered from 1.

    Raises:
        BadDataError: names the first such conversation and its token.
    """
    num_rows = model.get_input_embeddings().weight.shape[0]
    for number, tokens in enumerate(conversations, start=1):
        if token := token_without_row(tokenizer, tokens, num_rows=num_rows):
            raise BadDataError(
                f"{name} {number:,} has the token {token}, and the model's embedding has {num_rows:,} rows, none for "
                "it. Take it out of the text, or leave it out."
            )


def num_embedding_rows(folder: Path, *, score_token_id: int | None = None) -> int:
    """Rows of a model's embedding, known before its weights are loaded: they are refused where they differ.

    Args:
        score_token_id: a token that gets a row, and with it those before it (`score_token.give_embedding_row`).

    Raises:
        MissingPrerequisiteError: the folder has no config that can be read.
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
    """A token among these ids for which an embedding of so many rows has none, with its id; empty: there is none."""
    highest = max(tokens, default=-1)
    return f"{tokenizer.convert_ids_to_tokens(highest)} (id {highest:,})" if highest >= num_rows else ""


def spelled_out(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], *, num_rows: int) -> list[int]:
    """The same text where each special token that an embedding of so many rows has none for is spelt by other tokens.

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
    """How many texts are left out since they spell a special token that the model's embedding has no row for.

    Args:
        without: `token_without_row` of each text.
        name: what they are, in the plural.
        of: whose embedding it is.

    Raises:
        BadDataError: more than a tenth of them do: then texts and tokenizer do not belong together.
    """
    found = [token for token in without if token]
    words = f"{len(found):,} of {len(without):,} {name} are left out: they spell a token that {of}'s embedding "
    words += f"of {num_rows:,} rows has none for, the first {found[0]}."
    if len(found) > _MOST_WITHOUT_ROW * len(without):
        raise BadDataError(
            words.replace("are left out: they ", "")
            + f" More than {_MOST_WITHOUT_ROW:.0%} is no accident: put the model's own tokenizer there, take the "
            "token out of the texts, or use a model that knows it."
        )
    return words


def _occurring_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of a conversation's tokens: all but special ones that neither a role of their own nor the template brings in.

    A text may still spell such a token; its id is met where the text becomes tokens.
    """
    named = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    asked = {int(token_id) for token_id in named if token_id is not None}
    return (set(tokenizer.get_vocab().values()) - special) | asked | set(probe_ids(tokenizer))


def probe_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a whole conversation, a question with its answer, in the tokenizer's chat template."""
    return list(tokenizer.apply_chat_template(_PROBE, tokenize=True, return_dict=True)["input_ids"])
