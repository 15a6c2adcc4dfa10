"""The filters of filter_dataset in their order; each takes rows, drops some under one name, and counts them."""

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence

from containers.contracts.stage_configs import FilterDatasetConfig
from containers.stages.funnel import DroppedRow, FunnelCounter
from containers.stages.language import LanguageJudge
from containers.stages.language_names import UNKNOWN_LANGUAGE, normalised_language
from containers.stages.pair_filters import contradictory, control_token, has_equal_responses, num_characters, repeated
from containers.stages.pair_schemas import PreferenceRow
from containers.stages.pair_sources import PlacedRow
from containers.stages.prompt_split import sample_of
from containers.stages.recorder import Recorder
from containers.stages.token_lengths import TokenCounter

Rows = list[PlacedRow]

CODE_DOMAIN = "code"

_PROGRESS_INTERVAL_S = 2.0
_TOKEN_BATCH_ROWS = 128


class FilterChain:
    """Applies filters to rows and records each as a step of the funnel."""

    def __init__(self, config: FilterDatasetConfig, *, counter: FunnelCounter, seed: int) -> None:
        self._config = config
        self._counter = counter
        self._seed = seed

    def by_language_column(self, rows: Rows) -> Rows:
        """Drop code rows where the config says so, then prose rows whose column names another language."""
        if self._config.code_rows == "drop":
            rows = self._drop(rows, "code_rows", lambda item: f"language {_language(item)}" if is_code(item) else "")
        wanted = {normalised_language(name) for name in self._config.languages} | {UNKNOWN_LANGUAGE}
        return self._drop(
            rows,
            "language_column",
            lambda item: "" if is_code(item) or _language(item) in wanted else f"language {_language(item)}",
        )

    def by_detected_language(self, rows: Rows, *, judge: LanguageJudge, recorder: Recorder) -> Rows:
        """Drop rows with a text in another language; write down the language found where the column names none."""
        detected: dict[int, str] = {}
        reported = time.monotonic()
        for number, item in enumerate(rows):
            verdict = judge.judge_row(item.row, is_code=is_code(item))
            if verdict.kind != "wanted":
                detected[id(item)] = f"{verdict.kind}: {verdict.language}"
            elif _language(item) == UNKNOWN_LANGUAGE:
                pair = dataclasses.replace(item.row.pair, language=verdict.language)
                item.row = dataclasses.replace(item.row, pair=pair)
            if time.monotonic() - reported > _PROGRESS_INTERVAL_S:
                reported = time.monotonic()
                recorder.progress(number + 1, len(rows), unit="rows", text="language of the texts")
        recorder.progress(len(rows), len(rows), unit="rows", text="language of the texts")
        return self._drop(rows, "detected_language", lambda item: detected.get(id(item), ""))

    def by_flaws(self, rows: Rows, *, count_tokens: TokenCounter | None) -> Rows:
        """Drop ties, equal responses, control tokens, over-long texts, and labels against every annotator."""
        rows = self._drop(rows, "tie", lambda item: "no response is better" if item.row.is_tie else "")
        rows = self._drop(
            rows, "equal_responses", lambda item: item.row.pair.chosen if has_equal_responses(item.row) else ""
        )
        rows = self._drop(rows, "control_tokens", lambda item: control_token(item.row))
        longest = self._config.max_characters
        rows = self._drop(
            rows,
            "over_long_characters",
            lambda item: f"{length:,} characters" if (length := num_characters(item.row)) > longest else "",
        )
        if count_tokens is not None and self._config.max_tokens is not None:
            over_long = _over_long(rows, count_tokens, max_tokens=self._config.max_tokens)
            rows = self._drop(rows, "over_long_tokens", lambda item: over_long.get(id(item), ""))
        return self._drop(
            rows,
            "contradicts_annotators",
            lambda item: "label against every annotator" if item.row.contradicts_annotators else "",
        )

    def by_repetition(self, rows: Rows) -> Rows:
        """Drop rows said before, rows of which another says the opposite, and train rows with a validation prompt."""
        again = _found_within_splits(rows, repeated)
        rows = self._drop(rows, "duplicate", lambda item: "said before" if id(item) in again else "")
        opposed = _found_within_splits(rows, contradictory)
        rows = self._drop(
            rows, "contradictory_pair", lambda item: "another row says the opposite" if id(item) in opposed else ""
        )
        held_out = {item.row.prompt_id for item in rows if item.split == "validation"}
        return self._drop(
            rows,
            "prompt_in_validation",
            lambda item: "also a validation prompt" if item.split == "train" and item.row.prompt_id in held_out else "",
        )

    def by_sampling(self, rows: Rows) -> Rows:
        """Keep a seeded sample of `max_rows` training rows; a validation source stays whole."""
        if self._config.max_rows is None:
            return rows
        train_ids = [item.row.pair.pair_id for item in rows if item.split == "train"]
        sample = sample_of(train_ids, size=self._config.max_rows, seed=self._seed, purpose="max_rows")
        return self._drop(
            rows,
            "sampled_away",
            lambda item: "" if item.split == "validation" or item.row.pair.pair_id in sample else "not in the sample",
        )

    def _drop(self, rows: Rows, reason: str, seen: Callable[[PlacedRow], str]) -> Rows:
        """The rows for which `seen` says nothing; the others are counted with what it says."""
        kept: Rows = []
        dropped: list[DroppedRow] = []
        for item in rows:
            if finding := seen(item):
                dropped.append(item.dropped(finding))
            else:
                kept.append(item)
        self._counter.step(reason, dropped)
        return kept


def is_code(item: PlacedRow) -> bool:
    """Whether the row's language column holds a programming language."""
    return item.row.pair.domain == CODE_DOMAIN


def _language(item: PlacedRow) -> str:
    return item.row.pair.language


def _found_within_splits(rows: Rows, find: Callable[[Sequence[PreferenceRow]], Collection[int]]) -> set[int]:
    """Identities of the rows that `find` finds among the rows of their split."""
    found: set[int] = set()
    for split in ("train", "validation"):
        part = [item for item in rows if item.split == split]
        found.update(id(part[position]) for position in find([item.row for item in part]))
    return found


def _over_long(rows: Rows, count_tokens: TokenCounter, *, max_tokens: int) -> dict[int, str]:
    """Identities of rows whose prompt plus longer response has more tokens, with the number."""
    found: dict[int, str] = {}
    for begin in range(0, len(rows), _TOKEN_BATCH_ROWS):
        batch = rows[begin : begin + _TOKEN_BATCH_ROWS]
        answers = [(item, text) for item in batch for text in (item.row.pair.chosen, item.row.pair.rejected)]
        lengths = count_tokens(
            [[*item.row.pair.prompt, {"role": "assistant", "content": text}] for item, text in answers]
        )
        for (item, _), length in zip(answers, lengths, strict=True):
            if length > max_tokens:
                found[id(item)] = f"{length:,} tokens"
    return found
