"""The filters that preferences and prompts share; each takes rows, drops some under one name, and counts them."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic

from containers.contracts.configs.parts.row_filters import RowFilters
from containers.data.filters.contamination import SuiteIndex, SuitePrompt
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
from containers.data.sources import Placed, PlacedT
from containers.data.splits import mixture_sizes, sample_of
from containers.harness.recorder import Recorder

CODE_DOMAIN = "code"

_PROGRESS_INTERVAL_S = 2.0


class FilterChain(Generic[PlacedT]):
    """Applies filters to rows and records each as a step of the funnel.

    Attributes:
        overlaps: rows and prompts that repeat others.
        groups: prompts that every split keeps together.
    """

    def __init__(self, config: RowFilters, *, counter: FunnelCounter, seed: int) -> None:
        self._config = config
        self._counter = counter
        self._seed = seed
        self.overlaps = Overlaps()
        self.groups = PromptGroups()
        self._prompts: Prompts | None = None

    def by_language_column(self, rows: list[PlacedT]) -> list[PlacedT]:
        """Drop code rows where the config says so, then prose rows whose column names another language."""
        if self._config.code_rows == "drop":
            rows = self.drop(
                rows, "code_rows", {id(item): f"language {_language(item)}" for item in rows if is_code(item)}
            )
        wanted = {normalised_language(name) for name in self._config.languages} | {UNKNOWN_LANGUAGE}
        others = [item for item in rows if item.row.language not in wanted]
        return self.drop(
            rows,
            "language_column",
            {id(item): f"language {_language(item)}" for item in others if not is_code(item)},
        )

    def by_detected_language(self, rows: list[PlacedT], *, judge: LanguageJudge, recorder: Recorder) -> list[PlacedT]:
        """Drop rows with a text in another language; record the language found where the column names none."""
        detected: dict[int, str] = {}
        reported = time.monotonic()
        for number, item in enumerate(rows):
            verdict = judge.judge_row(item.row, is_code=is_code(item))
            if verdict.kind != "wanted":
                detected[id(item)] = f"{verdict.kind}: {verdict.language}"
            elif _language(item) == UNKNOWN_LANGUAGE:
                item.row = item.row.in_language(verdict.language)
            if time.monotonic() - reported > _PROGRESS_INTERVAL_S:
                reported = time.monotonic()
                recorder.progress(number + 1, len(rows), unit="rows", text="language of the texts")
        recorder.progress(len(rows), len(rows), unit="rows", text="language of the texts")
        return self.drop(rows, "detected_language", detected)

    def by_validation_prompts(self, rows: list[PlacedT]) -> list[PlacedT]:
        """Drop training rows with the prompt of a validation row."""
        held_out = {item.row.prompt_id for item in rows if item.split == "validation"}
        shared = [item for item in rows if item.row.prompt_id in held_out and item.split == "train"]
        return self.drop(rows, "prompt_in_validation", {id(item): "also a validation prompt" for item in shared})

    def by_overlaps(self, rows: list[PlacedT], suites: Mapping[str, Sequence[SuitePrompt]]) -> list[PlacedT]:
        """Look for rows that repeat suites, other rows or held-out prompts, as far as the config says so."""
        if suites:
            rows = self.by_contamination(rows, suites)
        if self._config.near_duplicates != "off":
            rows = self.by_near_duplication(rows)
        return rows if self._config.similar_prompts == "off" else self.by_similar_prompts(rows)

    def by_contamination(self, rows: list[PlacedT], prompts: Mapping[str, Sequence[SuitePrompt]]) -> list[PlacedT]:
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
        return self.drop(rows, "contaminated", seen) if drops else rows

    def by_near_duplication(self, rows: list[PlacedT]) -> list[PlacedT]:
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
        return self.drop(rows, "near_duplicate", seen) if drops else rows

    def by_similar_prompts(self, rows: list[PlacedT]) -> list[PlacedT]:
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
        return self.drop(rows, "similar_to_validation", seen)

    def sample(self, rows: list[PlacedT], reason: str, sizes: Mapping[str, int]) -> list[PlacedT]:
        """Keep a seeded sample of the training rows of each source, of the size given for it."""
        chosen: set[str] = set()
        for name, size in sizes.items():
            ids = [item.row.row_id for item in rows if item.split == "train" and item.source == name]
            chosen |= sample_of(ids, size=size, seed=self._seed, purpose=reason)
        return self.drop(rows, reason, _outside(rows, chosen))

    def by_mixture(self, rows: list[PlacedT]) -> list[PlacedT]:
        """Keep as many training rows of each source as the mixture's weights allow."""
        weights = {share.name: share.weight for share in self._config.mixture if share.weight is not None}
        if not weights:
            return rows
        available = {name: train_rows_by_source(rows)[name] for name in weights}
        return self.sample(rows, "mixture_weight", mixture_sizes(available, weights, most=self._config.max_rows))

    def by_sampling(self, rows: list[PlacedT]) -> list[PlacedT]:
        """Keep a seeded sample of `max_rows` training rows; a validation source stays whole."""
        if self._config.max_rows is None:
            return rows
        train_ids = [item.row.row_id for item in rows if item.split == "train"]
        sample = sample_of(train_ids, size=self._config.max_rows, seed=self._seed, purpose="max_rows")
        return self.drop(rows, "sampled_away", _outside(rows, sample))

    def _prompts_of(self, rows: list[PlacedT]) -> Prompts:
        """Return the different prompts of the rows; each step has a part of those of the step before."""
        turns = {item.row.prompt_id: item.row.prompt for item in rows}
        self._prompts = Prompts(turns) if self._prompts is None else self._prompts.only(turns)
        return self._prompts

    def drop(self, rows: list[PlacedT], reason: str, seen: Mapping[int, str]) -> list[PlacedT]:
        """Drop and count the rows whose identity is in `seen`, which says what was wrong; return the others."""
        dropped = [item.dropped(seen[id(item)]) for item in rows if id(item) in seen] if seen else []
        self._counter.step(reason, dropped)
        return [item for item in rows if id(item) not in seen] if dropped else rows


def is_code(item: Placed) -> bool:
    """Whether the row's language column holds a programming language."""
    return item.row.domain == CODE_DOMAIN


def _language(item: Placed) -> str:
    return item.row.language


def _outside(rows: Sequence[Placed], sample: Collection[str]) -> dict[int, str]:
    """Identities of the training rows that are not in a sample of pairs."""
    train = [item for item in rows if item.split == "train"]
    return {id(item): "not in the sample" for item in train if item.row.row_id not in sample}


def train_rows_by_source(rows: Iterable[Placed]) -> Counter[str]:
    """Number of training rows of each source."""
    return Counter(item.source for item in rows if item.split == "train")
