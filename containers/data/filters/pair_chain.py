"""The filters that only preferences have: flaws of a pair, repeated and contradictory pairs."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.data.filters.chain import FilterChain, train_rows_by_source
from containers.data.filters.flaws import FLAWS, contradictory, num_characters, repeated
from containers.data.funnel import FunnelCounter
from containers.data.rows import PreferenceRow, Turn
from containers.data.sources import PlacedRow

Rows = list[PlacedRow]

_TOKEN_BATCH_ROWS = 128


class ConversationLengths(Protocol):
    """Counts tokens, for runs with max_tokens; implemented in `containers.stages.filter_dataset`."""

    def lengths(self, conversations: Sequence[Sequence[Turn]]) -> list[int]:
        """Number of tokens of each conversation; 0 where the template refuses it."""

    def require_no_refusal(self) -> None:
        """Raise BadDataError if the template refused a conversation."""


class PairChain(FilterChain[PlacedRow]):
    """The filters of filter_dataset."""

    def __init__(self, config: FilterDatasetConfig, *, counter: FunnelCounter, seed: int) -> None:
        super().__init__(config, counter=counter, seed=seed)
        self._pairs = config

    def by_flaws(self, rows: Rows, *, token_counter: ConversationLengths | None) -> Rows:
        """Drop ties, equal responses, control tokens, over-long texts, and labels against every annotator."""
        for flaw in ("tie", "equal_responses", "control_tokens"):
            rows = self._by_flaw(rows, flaw)
        longest = self._pairs.max_characters
        over_long = {id(item): length for item in rows if (length := num_characters(item.row)) > longest}
        rows = self.drop(
            rows, "over_long_characters", {key: f"{length:,} characters" for key, length in over_long.items()}
        )
        if token_counter is not None and self._pairs.max_tokens is not None:
            rows = self.drop(
                rows, "over_long_tokens", _over_long(rows, token_counter, max_tokens=self._pairs.max_tokens)
            )
        return self._by_flaw(rows, "contradicts_annotators")

    def _by_flaw(self, rows: Rows, name: str) -> Rows:
        return self.drop(rows, name, {id(item): seen for item in rows if (seen := FLAWS[name](item.row))})

    def by_repetition(self, rows: Rows) -> Rows:
        """Drop repeated rows, rows that contradict another, and train rows with a validation prompt."""
        again = _found_within_splits(rows, repeated)
        rows = self.drop(rows, "duplicate", dict.fromkeys(again, "same as an earlier row"))
        opposed = _found_within_splits(rows, contradictory)
        rows = self.drop(rows, "contradictory_pair", dict.fromkeys(opposed, "another row says the opposite"))
        return self.by_validation_prompts(rows)

    def by_share(self, rows: Rows) -> Rows:
        """Keep `data_percentage` of the training rows of each source, then as many as a mixture's weights allow."""
        percentage = self._pairs.data_percentage
        if percentage < 100:
            sizes = {name: round(count * percentage / 100) for name, count in train_rows_by_source(rows).items()}
            rows = self.sample(rows, "data_percentage", sizes)
        return self.by_mixture(rows)


def _found_within_splits(rows: Rows, find: Callable[[Sequence[PreferenceRow]], Collection[int]]) -> set[int]:
    """Identities of the rows that `find` finds among the rows of their split."""
    found: set[int] = set()
    for split in ("train", "validation"):
        part = [item for item in rows if item.split == split]
        found.update(id(part[position]) for position in find([item.row for item in part]))
    return found


def _over_long(rows: Rows, counter: ConversationLengths, *, max_tokens: int) -> dict[int, str]:
    """Identities of rows with more than `max_tokens` in the prompt plus one completion, with the number of tokens."""
    found: dict[int, str] = {}
    for begin in range(0, len(rows), _TOKEN_BATCH_ROWS):
        batch = rows[begin : begin + _TOKEN_BATCH_ROWS]
        answers = [(item, text) for item in batch for text in (item.row.pair.chosen, item.row.pair.rejected)]
        lengths = counter.lengths(
            [[*item.row.pair.prompt, {"role": "assistant", "content": text}] for item, text in answers]
        )
        for (item, _), length in zip(answers, lengths, strict=True):
            if length > max_tokens:
                found[id(item)] = f"{length:,} tokens"
    counter.require_no_refusal()
    return found
