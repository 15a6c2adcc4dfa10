"""build_base_model: a small Qwen3 with random weights and its tokenizer, for runs without a model hub."""

import base64
import binascii
import math
import unicodedata
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import tiktoken
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    set_seed,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from containers.contracts.configs.build_base_model import BuildBaseModelConfig
from containers.contracts.names import MODEL_FOLDER, POLICY_TRAIN_PROMPTS_FILE
from containers.contracts.outcome import Metric
from containers.data.pairs import DEMONSTRATION_FILES, PAIR_FILES, Row
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError
from containers.models.loading import parameter_counts
from containers.rollouts.prompts import read_prompt_rows

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
_SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
_NUM_BYTES = 256
_CHECKED_TEXTS = 500

# The columns with turns, of each input with rows of conversations.
_TURNS = {PAIR_FILES: ("prompt", "chosen", "rejected"), DEMONSTRATION_FILES: ("prompt", "completion")}


def run(context: StageContext) -> tuple[Metric, ...]:
    """Write `model/` (config, safetensors, tokenizer, chat template); return sizes and bytes per token."""
    config = context.spec.config
    if not isinstance(config, BuildBaseModelConfig):
        raise BadConfigError(f"build_base_model was given the config of {config.stage}.")
    texts = _texts(context)
    tokenizer = _build_tokenizer(context, config, texts)
    tokenizer.chat_template = default_chat_template()
    model = _build_model(config, tokenizer, seed=context.spec.seed)
    folder = context.output / MODEL_FOLDER
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return (
        Metric(name="total_parameters", value=parameter_counts(model)[1], unit="parameters"),
        Metric(name="vocabulary_size", value=len(tokenizer), unit="tokens"),
        _bytes_per_token(tokenizer, texts),
    )


def _texts(context: StageContext) -> list[str]:
    """Return the texts of the training rows that the run has: pairs, prompts with answers, demonstrations."""
    turns: list[Row] = []
    answers: list[str] = []
    for files, columns in (
        (PAIR_FILES, ("prompt", "chosen", "rejected")),
        (DEMONSTRATION_FILES, ("prompt", "completion")),
    ):
        if context.has_input(files.role):
            rows = files.read(context.input_path(files.role), files.train)
            turns += [turn for row in rows for column in columns for turn in row[column]]
    if context.has_input("prompts"):
        rows = read_prompt_rows(context.input_path("prompts") / POLICY_TRAIN_PROMPTS_FILE)
        turns += [turn for row in rows for turn in row["prompt"]]
        answers = [answer for row in rows if (answer := row.get("answer"))]
    return [*(turn["content"] for turn in turns), *answers]


def default_chat_template() -> str:
    """Return ChatML, the format of Qwen models: `<|im_start|>role`, the text, `<|im_end|>`."""
    return resources.files("containers.stages").joinpath("chatml.jinja").read_text(encoding="utf-8")


def _build_tokenizer(context: StageContext, config: BuildBaseModelConfig, texts: list[str]) -> PreTrainedTokenizerBase:
    """Build the tokenizer from the rank file if there is one, else train it on the texts."""
    length = config.max_position_embeddings
    sample = texts[:: max(1, len(texts) // _CHECKED_TEXTS)]
    if context.has_input("tokenizer_file"):
        if config.vocabulary_size is not None:
            context.recorder.note("tokenizer_file sets the vocabulary; vocabulary_size is not used.")
        return tokenizer_from_ranks(context.input_path("tokenizer_file"), max_length=length, sample=sample)
    if config.vocabulary_size is None:
        raise BadConfigError(
            "build_base_model.vocabulary_size is null and there is no tokenizer_file: give one of the two."
        )
    tokenizer = tokenizer_from_texts(texts, vocabulary_size=config.vocabulary_size, max_length=length)
    if len(tokenizer) < config.vocabulary_size:
        context.recorder.note(
            f"The texts hold only {len(tokenizer)} different tokens; vocabulary_size asks for {config.vocabulary_size}."
        )
    check_round_trip(tokenizer, sample)
    return tokenizer


def _build_model(config: BuildBaseModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Qwen3ForCausalLM:
    """Build a model with random weights from `seed`. It shares input and output embeddings, like small Qwen3 models."""
    set_seed(seed)
    end_of_text = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    turn_end = tokenizer.convert_tokens_to_ids(TURN_END)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=turn_end,
            pad_token_id=end_of_text,
            dtype=torch.float32,
            # Keeps activations and logits near one at any width. Qwen3's 0.02 does that at 2,500 dimensions; with it,
            # a model of 128 would start with signals a quarter as large.
            initializer_range=config.hidden_size**-0.5,
        )
    )
    model.generation_config = GenerationConfig(
        do_sample=True, bos_token_id=None, eos_token_id=[turn_end, end_of_text], pad_token_id=end_of_text
    )
    return model


def _bytes_per_token(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Metric:
    sample = texts[:: max(1, len(texts) // _CHECKED_TEXTS)]
    num_tokens = sum(len(tokenizer(text)["input_ids"]) for text in sample)
    num_bytes = sum(len(text.encode()) for text in sample)
    ratio = num_bytes / num_tokens if num_tokens else math.nan
    return Metric(name="bytes_per_token", value=ratio, unit="bytes", count=len(sample))


def tokenizer_from_texts(texts: Sequence[str], *, vocabulary_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the texts; every text round-trips, since each byte is a token.

    Args:
        vocabulary_size: number of tokens, with special ones; the result has fewer if the texts hold no more merges.
        max_length: what the tokenizer reports as the model's longest input.
    """
    backend = _with_qwen_splitting(Tokenizer(BPE()))
    trainer = BpeTrainer(
        vocab_size=vocabulary_size - len(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return _finish(backend, max_length=max_length)


def tokenizer_from_ranks(path: Path, *, max_length: int, sample: Sequence[str]) -> PreTrainedTokenizerFast:
    """Build a tokenizer from a tiktoken rank file (lines `base64 rank`), Qwen's splitting and special tokens.

    tiktoken joins the two neighbours that form the token of lowest rank. So each way to cut a token into two tokens
    becomes a merge, in the order of ranks. A word that is a token needs no merge.

    Args:
        sample: texts on which the result must give the same tokens as tiktoken.

    Raises:
        BadDataError: the file is no rank file, or the tokens differ; names the line or the text.
    """
    ranks = read_ranks(path)
    characters = bytes_to_unicode()
    merges = sorted(
        (rank, ranks[token[:cut]], ranks[token[cut:]], token[:cut], token[cut:])
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    )

    def text_of(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    model = BPE(
        vocab={text_of(token): rank for token, rank in ranks.items()},
        merges=[(text_of(left), text_of(right)) for *_, left, right in merges],
        ignore_merges=True,
    )
    tokenizer = _finish(_with_qwen_splitting(Tokenizer(model)), max_length=max_length)
    _check_against_tiktoken(tokenizer, ranks, sample, path=path)
    return tokenizer


def read_ranks(path: Path) -> dict[bytes, int]:
    """Read the rank of each token (bytes). tiktoken's own reader caches in /tmp by path and misses changes.

    Raises:
        BadDataError: a line is no `base64 rank`, the ranks are not 0, 1, 2 …, or one of the 256 bytes has no token.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise BadDataError(
                f"{path.name}:{number}: {line[:40]!r} is not a line of a tiktoken rank file (`base64 rank`)."
            ) from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise BadDataError(f"{path.name}: the ranks must be 0 to {len(ranks) - 1}, each once.")
    lacking = [byte for byte in range(_NUM_BYTES) if bytes([byte]) not in ranks]
    if lacking:
        raise BadDataError(
            f"{path.name}: {len(lacking)} of the 256 bytes have no token, the first is {lacking[0]:#04x}."
        )
    return ranks


def check_round_trip(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> None:
    """Raise BadDataError if decoding a text's tokens does not give the text (in Unicode form NFC)."""
    for text in texts:
        wanted = unicodedata.normalize("NFC", text)
        found = tokenizer.decode(tokenizer(text)["input_ids"])
        if found != wanted:
            raise BadDataError(f"The tokenizer changes a text: {wanted[:80]!r} came back as {found[:80]!r}.")


def _check_against_tiktoken(
    tokenizer: PreTrainedTokenizerFast, ranks: dict[bytes, int], texts: Sequence[str], *, path: Path
) -> None:
    reference = tiktoken.Encoding(path.stem, pat_str=PRETOKENIZE_REGEX, mergeable_ranks=ranks, special_tokens={})
    for text in texts:
        wanted = reference.encode_ordinary(unicodedata.normalize("NFC", text))
        found = tokenizer(text, split_special_tokens=True)["input_ids"]
        if found != wanted:
            raise BadDataError(f"The tokenizer made from {path.name} and tiktoken cut {text[:80]!r} differently.")
    check_round_trip(tokenizer, texts)


def _with_qwen_splitting(backend: Tokenizer) -> Tokenizer:
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _finish(backend: Tokenizer, *, max_length: int) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        model_max_length=max_length,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )
