"""Lengths of a run's pairs in tokens; a plan uses them instead of max_length alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from containers.contracts.names import TRAIN_PAIRS_FILE, StageName
from tasks.config.run import RunConfig
from tasks.config.sources import DatasetSource
from tasks.plan.inputs.data import DataSize, count_rows, local_files
from tasks.plan.inputs.pair_sample import PairTexts, are_all_taken, sample_demonstrations, sample_pairs, sample_prompts
from tasks.sources.hub import cached_file

TOKENIZER_FILE = "tokenizer.json"
# Measured with a vocabulary of 151,643: 4.3 in English dialogues, 3.3 to 3.6 in a mixture of languages, sums and code.
# With one of 480, trained on a dozen made-up facts: 4.0 on these. Mixed texts have fewer.
_CHARACTERS_PER_TOKEN = 4.0
_CHARACTERS_PER_TOKEN_OF_SMALL = 3.0
_SMALL_VOCABULARY = 8_000
# ChatML writes start, role, line end, and end and line end of a turn; a large vocabulary has a token for each.
_TURN_TOKENS = 5
END_OF_TURN_TOKENS = 2
_TURN = "<|im_start|>{role}\n<|im_end|>\n"
# Tokenizing this many characters takes a second or two.
_MAX_COUNTED_CHARACTERS = 6_000_000
# A row outside the sample may be longer, and characters are no tokens.
_MARGIN_OF_ALL, _MARGIN_OF_SAMPLE = 1.1, 1.5


@dataclass(frozen=True)
class TokenCounter:
    """Counts tokens.

    Attributes:
        words: how it counts, a clause.
        tokenizer: of the `tokenizers` package; None counts characters.
        user_turn: tokens that the chat template adds to a turn of the user.
        assistant_turn: the same for one of the assistant.
    """

    words: str
    tokenizer: Any = None
    characters_per_token: float = _CHARACTERS_PER_TOKEN
    user_turn: int = _TURN_TOKENS
    assistant_turn: int = _TURN_TOKENS

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without those of a chat template."""
        if self.tokenizer is None:
            return [round(len(text) / self.characters_per_token) for text in texts]
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(item) for item in encoded]


def find_counter(
    config: RunConfig, *, artifacts: Mapping[StageName, Path], vocabulary_size: int | None
) -> TokenCounter:
    """The best counter that is available without network.

    Args:
        artifacts: of stages that have their result already; build_base_model's holds the tokenizer that it made.
        vocabulary_size: of the model; None: unknown.
    """
    file = _tokenizer_file(config, artifacts)
    tokenizer = None if file is None else _load(file)
    if tokenizer is not None:
        user, assistant = (_turn_tokens(tokenizer, role) for role in ("user", "assistant"))
        return TokenCounter(f"tokens counted with {file}", tokenizer, user_turn=user, assistant_turn=assistant)
    small = vocabulary_size is not None and vocabulary_size < _SMALL_VOCABULARY
    ratio = _CHARACTERS_PER_TOKEN_OF_SMALL if small else _CHARACTERS_PER_TOKEN
    return TokenCounter(f"tokens estimated from characters, {ratio:g} to a token", characters_per_token=ratio)


def _tokenizer_file(config: RunConfig, artifacts: Mapping[StageName, Path]) -> Path | None:
    model = config.base_model
    if model is None:
        built = artifacts.get(StageName.BUILD_BASE_MODEL)
        return None if built is None else next(iter(sorted(built.rglob(TOKENIZER_FILE))), None)
    if model.path is not None:
        file = Path(model.path) / TOKENIZER_FILE
        return file if file.is_file() else None
    return cached_file("model", str(model.hub_id), TOKENIZER_FILE, revision=model.revision)


def _turn_tokens(tokenizer: Any, role: str) -> int:
    """What ChatML adds to a turn of that role; the usual number if the tokenizer does not know ChatML."""
    if tokenizer.token_to_id("<|im_start|>") is None or tokenizer.token_to_id("<|im_end|>") is None:
        return _TURN_TOKENS
    return len(tokenizer.encode(_TURN.format(role=role), add_special_tokens=False))


def _load(file: Path) -> Any:
    """The tokenizer; None if it cannot be read here, which the stage will explain."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # the package raises nothing narrower
        return None


@dataclass(frozen=True, slots=True)
class PairTokens:
    """Tokens of one pair; the prompt includes what the chat template writes before a completion."""

    prompt: int
    chosen: int
    rejected: int

    @property
    def longest(self) -> int:
        """Tokens of the longer of its two conversations."""
        return self.prompt + max(self.chosen, self.rejected)

    @property
    def packed(self) -> int:
        """Tokens of both conversations, the prompt once."""
        return self.prompt + self.chosen + self.rejected


@dataclass(frozen=True)
class PairLengths:
    """The lengths of a sample of the training pairs.

    Attributes:
        are_all: whether every pair was looked at.
        words: which rows were looked at, and how their tokens were counted; a sentence without its full stop.
        are_counted: by the model's tokenizer; else they are guessed from characters.
    """

    pairs: tuple[PairTokens, ...]
    are_all: bool
    words: str
    are_counted: bool

    def fitting(self, max_length: int) -> tuple[PairTokens, ...]:
        """Pairs whose conversations both have at most `max_length` tokens; a training leaves the others out."""
        return tuple(pair for pair in self.pairs if pair.longest <= max_length)

    def fitting_prompts(self, max_length: int) -> tuple[int, ...]:
        """Tokens of the prompts that have at most `max_length`."""
        return tuple(pair.prompt for pair in self.pairs if pair.prompt <= max_length)

    def with_margin(self, longest: int, *, most: int) -> int:
        """Tokens to reserve memory for, if the longest row of the sample has `longest`; never more than `most`.

        Example: a `longest` of 900 gives 990 if all rows were counted, else 1,350.
        """
        margin = _MARGIN_OF_ALL if self.are_all and self.are_counted else _MARGIN_OF_SAMPLE
        return min(most, round(longest * margin))

    @property
    def spread(self) -> str:
        """The lengths as text: `prompts 48 (middle), 310 (95 %), 1,204 (longest); answers …`."""
        answers = [tokens for pair in self.pairs for tokens in (pair.chosen, pair.rejected)]
        return f"prompts {_spread([pair.prompt for pair in self.pairs])}; answers {_spread(answers)}"


def read_lengths(
    config: RunConfig, data: DataSize, *, vocabulary_size: int | None, artifacts: Mapping[StageName, Path]
) -> PairLengths | None:
    """Lengths of the training pairs; None if they are not on this disk, or cannot be read here.

    Args:
        data: how many rows there are; exact where filter_dataset counted its own.
        artifacts: of stages that have their result already; filter_dataset's holds exactly these pairs.
    """
    if config.dataset is None:
        return None
    filtered = artifacts.get(StageName.FILTER_DATASET)
    files: Sequence[Path]
    kept = data.train_pairs if data.train_pairs is not None and data.train_pairs.origin == "exact" else None
    if filtered is not None and kept is not None and (filtered / TRAIN_PAIRS_FILE).is_file():
        files, source = (filtered / TRAIN_PAIRS_FILE,), "pairs that filter_dataset kept"
        num_rows: int | None = kept.value
        found = list(sample_pairs(files, num_rows=num_rows))
    else:
        readings = local_files(config.dataset)
        files, source = tuple(readings), "rows, before any filter but max_characters,"
        num_rows = data.rows.value if data.rows is not None else None
        longest = config.filter_dataset.max_characters
        sampled = sample_pairs(files, num_rows=num_rows, readings=readings)
        found = [pair for pair in sampled if pair.num_characters <= longest]
    is_all = are_all_taken(files, num_rows=num_rows)
    return _lengths(found, is_all, config, artifacts, vocabulary_size, num_rows=num_rows, source=source)


def read_prompt_lengths(
    config: RunConfig, *, vocabulary_size: int | None, artifacts: Mapping[StageName, Path]
) -> PairLengths | None:
    """Lengths of the prompts of a prompt set, as `read_lengths`; None without a prompt set."""
    if config.prompts is None:
        return None
    sample = partial(sample_prompts, config=config.filter_prompts)
    return _text_lengths(config, config.prompts, sample, artifacts, vocabulary_size, what="prompts")


def read_demonstration_lengths(
    config: RunConfig, *, vocabulary_size: int | None, artifacts: Mapping[StageName, Path]
) -> PairLengths | None:
    """Lengths of demonstrations, as `read_lengths`: all answers are the chosen one; None where there are none."""
    if config.demonstrations is None:
        return None
    sample = partial(sample_demonstrations, config=config.filter_demonstrations)
    return _text_lengths(config, config.demonstrations, sample, artifacts, vocabulary_size, what="demonstrations")


def _text_lengths(
    config: RunConfig,
    source: DatasetSource,
    sample: Callable[..., Iterator[PairTexts]],
    artifacts: Mapping[StageName, Path],
    vocabulary_size: int | None,
    *,
    what: str,
) -> PairLengths | None:
    readings = local_files(source)
    files = tuple(readings)
    counted = [count_rows(file) for file in files]
    num_rows = sum(count.value for count in counted if count is not None) if all(counted) else None
    found = list(sample(files, num_rows=num_rows, readings=readings))
    is_all = are_all_taken(files, num_rows=num_rows)
    of = f"{what}, before any filter,"
    return _lengths(found, is_all, config, artifacts, vocabulary_size, num_rows=num_rows, source=of)


def _lengths(
    found: Sequence[PairTexts],
    is_all: bool,
    config: RunConfig,
    artifacts: Mapping[StageName, Path],
    vocabulary_size: int | None,
    *,
    num_rows: int | None,
    source: str,
) -> PairLengths | None:
    texts = _up_to(found, num_characters=_MAX_COUNTED_CHARACTERS)
    if not texts:
        return None
    counter = find_counter(config, artifacts=artifacts, vocabulary_size=vocabulary_size)
    of = "" if num_rows is None else f" of {num_rows:,}"
    return PairLengths(
        pairs=_counted(texts, counter),
        are_all=len(texts) == len(found) and is_all,
        words=f"{len(texts):,}{of} {source} were looked at; {counter.words}, and {counter.user_turn} more "
        f"a turn of the user, {counter.assistant_turn} a turn of the assistant",
        are_counted=counter.tokenizer is not None,
    )


def _up_to(texts: Sequence[PairTexts], *, num_characters: int) -> list[PairTexts]:
    """Every pair, every second, every third …, so that they have about `num_characters` at most."""
    total = sum(len(pair.prompt) + len(pair.chosen) + len(pair.rejected) for pair in texts)
    return list(texts[:: -(-total // num_characters) or 1])


def _counted(texts: Sequence[PairTexts], counter: TokenCounter) -> tuple[PairTokens, ...]:
    counts = counter.count([text for pair in texts for text in (pair.prompt, pair.chosen, pair.rejected)])
    return tuple(
        PairTokens(
            prompt=prompt + counter.user_turn * pair.num_turns + counter.assistant_turn - END_OF_TURN_TOKENS,
            chosen=chosen + END_OF_TURN_TOKENS,
            rejected=rejected + END_OF_TURN_TOKENS,
        )
        for pair, prompt, chosen, rejected in zip(texts, counts[::3], counts[1::3], counts[2::3], strict=True)
    )


def _spread(lengths: Sequence[int]) -> str:
    ordered = sorted(lengths)
    middle, most = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, round(len(ordered) * 0.95))]
    return f"{middle:,} (middle), {most:,} (95 % have no more), {ordered[-1]:,} (longest) tokens"
