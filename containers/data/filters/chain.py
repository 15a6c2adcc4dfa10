"""The filters of filter_dataset in their order; each takes rows, drops some under one name, and counts them."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.data.filters.contamination import SuiteIndex, SuitePrompt
from containers.data.filters.flaws import FLAWS, contradictory, num_characters, repeated
from containers.data.filters.near_duplicates import near_duplicates
from containers.data.filters.overlaps import (
    Overlaps,
    contaminated_lines,
    contamination_by_suite,
    near_duplicate_line,
    similar_prompt_line,
)
from containers.data.filters.prompt_words import Prompts
from containers.data.filters.similar_prompts import PromptGroups, prompts_for_split, similar_prompts
from containers.data.funnel import FunnelCounter
from containers.data.language import LanguageJudge
from containers.data.language_names import UNKNOWN_LANGUAGE, normalised_language
from containers.data.rows import PreferenceRow, Turn
from containers.data.sources import PlacedRow
from containers.data.splits import mixture_sizes, sample_of
from containers.harness.recorder import Recorder

Rows = list[PlacedRow]

CODE_DOMAIN = "code"

_PROGRESS_INTERVAL_S = 2.0
_TOKEN_BATCH_ROWS = 128


class ConversationLengths(Protocol):
    """Counts tokens, for runs with max_tokens; implemented in `containers.stages.filter_dataset`."""

    def lengths(self, conversations: Sequence[Sequence[Turn]]) -> list[int]:
        """Number of tokens of each conversation; 0 where the template refuses it."""

    def require_no_refusal(self) -> None:
        """Raise BadDataError if the template refused a conversation."""


class FilterChain:
    """Applies filters to rows and records each as a step of the funnel.

    Attributes:
        overlaps: rows and prompts that repeat others.
        groups: prompts that every split keeps together.
    """

    def __init__(self, config: FilterDatasetConfig, *, counter: FunnelCounter, seed: int) -> None:
        self._config = config
        self._counter = counter
        self._seed = seed
        self.overlaps = Overlaps()
        self.groups = PromptGroups()
        self._prompts: Prompts | None = None

    def by_language_column(self, rows: Rows) -> Rows:
        """Drop code rows where the config says so, then prose rows whose column names another language."""
        if self._config.code_rows == "drop":
            rows = self._drop(
                rows, "code_rows", {id(item): f"language {_language(item)}" for item in rows if is_code(item)}
            )
        wanted = {normalised_language(name) for name in self._config.languages} | {UNKNOWN_LANGUAGE}
        others = [item for item in rows if item.row.pair.language not in wanted]
        return self._drop(
            rows,
            "language_column",
            {id(item): f"language {_language(item)}" for item in others if not is_code(item)},
        )

    def by_detected_language(self, rows: Rows, *, judge: LanguageJudge, recorder: Recorder) -> Rows:
        """Drop rows with a text in another language; record the language found where the column names none."""
        detected: dict[int, str] = {}
        reported = time.monotonic()
        for number, item in enumerate(rows):
            verdict = judge.judge_row(item.row, is_code=is_code(item))
            if verdict.kind != "wanted":
                detected[id(item)] = f"{verdict.kind}: {verdict.language}"
            elif _language(item) == UNKNOWN_LANGUAGE:
                pair = item.row.pair._replace(language=verdict.language)
                item.row = item.row._replace(pair=pair)
            if time.monotonic() - reported > _PROGRESS_INTERVAL_S:
                reported = time.monotonic()
                recorder.progress(number + 1, len(rows), unit="rows", text="language of the texts")
        recorder.progress(len(rows), len(rows), unit="rows", text="language of the texts")
        return self._drop(rows, "detected_language", detected)

    def by_flaws(self, rows: Rows, *, token_counter: ConversationLengths | None) -> Rows:
        """Drop ties, equal responses, control tokens, over-long texts, and labels against every annotator."""
        for flaw in ("tie", "equal_responses", "control_tokens"):
            rows = self._by_flaw(rows, flaw)
        longest = self._config.max_characters
        over_long = {id(item): length for item in rows if (length := num_characters(item.row)) > longest}
        rows = self._drop(
            rows, "over_long_characters", {key: f"{length:,} characters" for key, length in over_long.items()}
        )
        if token_counter is not None and self._config.max_tokens is not None:
            rows = self._drop(
                rows, "over_long_tokens", _over_long(rows, token_counter, max_tokens=self._config.max_tokens)
            )
        return self._by_flaw(rows, "contradicts_annotators")

    def _by_flaw(self, rows: Rows, name: str) -> Rows:
        return self._drop(rows, name, {id(item): seen for item in rows if (seen := FLAWS[name](item.row))})

    def by_repetition(self, rows: Rows) -> Rows:
        """Drop repeated rows, rows that contradict another, and train rows with a validation prompt."""
        again = _found_within_splits(rows, repeated)
        rows = self._drop(rows, "duplicate", dict.fromkeys(again, "same as an earlier row"))
        opposed = _found_within_splits(rows, contradictory)
        rows = self._drop(rows, "contradictory_pair", dict.fromkeys(opposed, "another row says the opposite"))
        held_out = {item.row.prompt_id for item in rows if item.split == "validation"}
        shared = [item for item in rows if item.row.prompt_id in held_out and item.split == "train"]
        return self._drop(rows, "prompt_in_validation", {id(item): "also a validation prompt" for item in shared})

    def by_contamination(self, rows: Rows, prompts: Mapping[str, Sequence[SuitePrompt]]) -> Rows:
        """List rows with a prompt of a suite, in training and validation, and drop them where the config says so."""
        index = SuiteIndex(item for items in prompts.values() for item in items)
        found_of = index.find(self._prompts_of(rows), overlap=self._config.contamination_overlap)
        findings = {id(item): found for item in rows if (found := found_of.get(item.row.prompt_id))}
        drops = self._config.contamination == "drop"
        self.overlaps.contaminated = [
            line
            for item in rows
            if id(item) in findings
            for line in contaminated_lines(item, findings[id(item)], dropped=drops)
        ]
        self.overlaps.num_contaminated_rows = len(findings)
        self.overlaps.suites = contamination_by_suite(prompts, list(findings.values()))

        best = {key: found[0].items[0] for key, found in findings.items()}
        seen = {key: f"item {item.item_id} of the suite {item.suite}" for key, item in best.items()}
        return self._drop(rows, "contaminated", seen) if drops else rows

    def by_near_duplication(self, rows: Rows) -> Rows:
        """List rows that nearly repeat another one, and drop them where the config says so; validation comes first."""
        ordered = sorted(rows, key=lambda item: item.split == "train")
        prompts, similarity = self._prompts_of(rows), self._config.near_duplicate_similarity
        found = list(near_duplicates([item.row for item in ordered], prompts, similarity=similarity))
        drops = self._config.near_duplicates == "drop"
        self.overlaps.near_duplicates = [
            near_duplicate_line(ordered[item.position], of=ordered[item.of], similarity=item.similarity, dropped=drops)
            for item in found
        ]
        seen = {
            id(ordered[item.position]): f"{item.similarity:.2f} like {ordered[item.of].file}:{ordered[item.of].line}"
            for item in found
        }
        return self._drop(rows, "near_duplicate", seen) if drops else rows

    def by_similar_prompts(self, rows: Rows) -> Rows:
        """List training rows with a prompt like a validation prompt, and drop them where the config says so.

        Without validation files nothing is dropped, so more prompts can stay together.
        """
        find = similar_prompts if any(item.split == "validation" for item in rows) else prompts_for_split
        groups = find(self._prompts_of(rows), overlap=self._config.similar_prompt_overlap)
        held_out = {groups.of(item.row.prompt_id): item for item in reversed(rows) if item.split == "validation"}
        found = {
            id(item): held_out[name]
            for item in rows
            if item.split == "train" and (name := groups.of(item.row.prompt_id)) in held_out
        }
        drops = self._config.similar_prompts == "drop"
        self.overlaps.similar_prompts = [
            similar_prompt_line(item, of=found[id(item)], dropped=drops) for item in rows if id(item) in found
        ]
        self.overlaps.num_similar_prompts = sum(map(len, groups.members().values()))
        if not drops:
            return rows
        self.groups = groups

        seen = {key: f"like the prompt of {other.file}:{other.line}" for key, other in found.items()}
        return self._drop(rows, "similar_to_validation", seen)

    def by_share(self, rows: Rows) -> Rows:
        """Keep `data_percentage` of the training rows of each source, then as many as a mixture's weights allow."""
        percentage = self._config.data_percentage
        if percentage < 100:
            sizes = {name: round(count * percentage / 100) for name, count in _train_rows_by_source(rows).items()}
            rows = self._sample(rows, "data_percentage", sizes)
        weights = {share.name: share.weight for share in self._config.mixture if share.weight is not None}
        if weights:
            sizes = mixture_sizes(
                {name: _train_rows_by_source(rows)[name] for name in weights}, weights, most=self._config.max_rows
            )
            rows = self._sample(rows, "mixture_weight", sizes)
        return rows

    def _sample(self, rows: Rows, reason: str, sizes: Mapping[str, int]) -> Rows:
        """Keep a seeded sample of the training rows of each source, of the size given for it."""
        chosen: set[str] = set()
        for name, size in sizes.items():
            ids = [item.row.pair.pair_id for item in rows if item.split == "train" and item.source == name]
            chosen |= sample_of(ids, size=size, seed=self._seed, purpose=reason)
        return self._drop(rows, reason, _outside(rows, chosen))

    def by_sampling(self, rows: Rows) -> Rows:
        """Keep a seeded sample of `max_rows` training rows; a validation source stays whole."""
        if self._config.max_rows is None:
            return rows
        train_ids = [item.row.pair.pair_id for item in rows if item.split == "train"]
        sample = sample_of(train_ids, size=self._config.max_rows, seed=self._seed, purpose="max_rows")
        return self._drop(rows, "sampled_away", _outside(rows, sample))

    def _prompts_of(self, rows: Rows) -> Prompts:
        """Return the different prompts of the rows; each step has a part of those of the step before."""
        turns = {item.row.prompt_id: item.row.pair.prompt for item in rows}
        self._prompts = Prompts(turns) if self._prompts is None else self._prompts.only(turns)
        return self._prompts

    def _drop(self, rows: Rows, reason: str, seen: Mapping[int, str]) -> Rows:
        """Drop and count the rows whose identity is in `seen`, which says what was wrong; return the others."""
        dropped = [item.dropped(seen[id(item)]) for item in rows if id(item) in seen] if seen else []
        self._counter.step(reason, dropped)
        return [item for item in rows if id(item) not in seen] if dropped else rows


def is_code(item: PlacedRow) -> bool:
    """Whether the row's language column holds a programming language."""
    return item.row.pair.domain == CODE_DOMAIN


def _language(item: PlacedRow) -> str:
    return item.row.pair.language


def _outside(rows: Rows, sample: Collection[str]) -> dict[int, str]:
    """Identities of the training rows that are not in a sample of pairs."""
    train = [item for item in rows if item.split == "train"]
    return {id(item): "not in the sample" for item in train if item.row.pair.pair_id not in sample}


def _train_rows_by_source(rows: Rows) -> Counter[str]:
    return Counter(item.source for item in rows if item.split == "train")


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
