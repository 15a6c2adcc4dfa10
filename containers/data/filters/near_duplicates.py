"""Rows that nearly repeat an earlier row: found by MinHash (rensa), then compared exactly.

Rows that share too few runs with others to be like one are left out first, part by part; few remain for an index of the
bands of their sketches. Two texts are alike by the runs of five words that they share, over all runs that either has
(Jaccard); two rows as their least alike part is: prompt, chosen or rejected. So another answer to the same long prompt
is no near-duplicate, nor is a row with its sides exchanged. Why this library: benchmarks/near_duplicates.md.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from containers.data.filters.prompt_words import Prompts
from containers.data.filters.run_numbers import (
    Flags,
    Numbers,
    Places,
    in_several_places,
    run_numbers,
    with_at_least,
    word_numbers,
)
from containers.data.rows import PreferenceRow

_RUN_WORDS = 5
_NUM_PERMUTATIONS = 128
_SEED = 1
# Of pairs exactly as alike as asked for, at most this share is not even compared.
_MAX_MISSED = 1e-3
# So many rows become numbers together: more are no faster and take more memory.
_ROWS_AT_ONCE = 500
# Similarities are fractions of whole numbers, computed in floating point.
_ROUNDING = 1e-9
# The same words in another part are another run; odd factors lose no bit.
_FACTORS_OF_PARTS = np.array([1, 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)

# The different runs of each part of a row, sorted.
_Parts = list[Numbers]


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """The row at `position` nearly repeats the one at `of`, which comes first and is none itself."""

    position: int
    of: int
    similarity: float


def near_duplicates(
    rows: Sequence[PreferenceRow], *, similarity: float, prompts: Prompts | None = None
) -> Iterator[NearDuplicate]:
    """Rows at least as similar as asked to an earlier row; of several, the most similar is named.

    An earlier row that is itself found stands for nothing, so chains do not eat a whole topic.

    Args:
        prompts: those of the rows, where their words were made already.
    """
    prompts = prompts or Prompts({row.prompt_id: row.pair.prompt for row in rows})
    positions = _rows_that_may_repeat(rows, prompts, similarity=similarity)
    kept_in_band: dict[bytes, list[int]] = defaultdict(list)
    kept: dict[int, _Parts] = {}
    for position, parts, bands in _sketched(rows, positions, similarity=similarity):
        likely = {other for band in bands for other in kept_in_band.get(band, ())}
        alike = [(_similarity(parts, kept[other], at_least=similarity), -other) for other in likely]
        best, of = max(alike, default=(0.0, 0))
        if best >= similarity:
            yield NearDuplicate(position, -of, best)
        else:
            kept[position] = parts
            for band in bands:
                kept_in_band[band].append(position)


def _sketched(
    rows: Sequence[PreferenceRow], positions: Sequence[int], *, similarity: float
) -> Iterator[tuple[int, _Parts, list[bytes]]]:
    """The rows at these positions in order: position, runs of each part, and the bands of the row's sketch."""
    # Imported late: a filter without this step needs no compiled library.
    from rensa import RMinHash  # type: ignore[import-untyped,unused-ignore]

    count = num_bands(similarity)
    for begin in range(0, len(positions), _ROWS_AT_ONCE):
        batch = positions[begin : begin + _ROWS_AT_ONCE]
        runs, owners = _runs([text_of(rows[position]) for position in batch for text_of in _PARTS])
        ends = np.cumsum(np.bincount(owners, minlength=len(batch) * len(_PARTS)))
        # Rows of which every part is that much alike are so as wholes; the sketch is of the whole.
        wholes = runs * _FACTORS_OF_PARTS[owners % len(_PARTS)]
        offsets = np.append(0, ends[len(_PARTS) - 1 :: len(_PARTS)]).astype(np.uint64)
        digests = RMinHash.digest_matrix_from_flat_token_hashes(wholes, offsets, _NUM_PERMUTATIONS, _SEED).to_rows()
        parts = [np.unique(part) for part in np.split(runs, ends[:-1])]
        for place, position in enumerate(batch):
            bands = np.array(digests[place], dtype=np.uint32).reshape(count, -1)
            keys = [number.to_bytes(1, "big") + band.tobytes() for number, band in enumerate(bands)]
            yield position, parts[len(_PARTS) * place : len(_PARTS) * (place + 1)], keys


def _similarity(left: _Parts, right: _Parts, *, at_least: float) -> float:
    """How alike the least alike part of two rows is; 0 where that is less than asked."""
    least = 1.0
    for one, other in zip(left, right, strict=True):
        if min(one.size, other.size) < at_least * max(one.size, other.size) - 1:
            return 0.0
        shared = np.intersect1d(one, other, assume_unique=True).size
        least = min(least, shared / (one.size + other.size - shared))
        if least < at_least:
            return 0.0
    return least


def _rows_that_may_repeat(rows: Sequence[PreferenceRow], prompts: Prompts, *, similarity: float) -> list[int]:
    """Positions of the rows of which every part shares so many runs with other rows that one of them may be alike.

    Part by part, so that few rows are read to their end.
    """
    positions = _rows_whose_prompts_may_repeat(rows, prompts, similarity=similarity)
    for text_of in _PARTS:
        texts = [text_of(rows[position]) for position in positions]
        positions = [positions[place] for place in np.flatnonzero(_texts_may_repeat(texts, similarity=similarity))]
    return positions


def _rows_whose_prompts_may_repeat(rows: Sequence[PreferenceRow], prompts: Prompts, *, similarity: float) -> list[int]:
    """The same of the prompts, whose words are made already; one with a system turn always may."""
    words, lengths = with_at_least(prompts.words.numbers, prompts.words.lengths, length=_RUN_WORDS)
    runs, _, _ = run_numbers(words, lengths, length=_RUN_WORDS)
    counts = lengths - _RUN_WORDS + 1
    # The system's words count here: with them the prompt stands a second time, and may be like one without.
    with_system = [row for row in rows if row.pair.prompt[0]["role"] == "system"]
    wholes, counts_of_wholes = _runs_by_text([_prompt(row) for row in with_system])
    runs, counts = np.append(runs, wholes), np.append(counts, counts_of_wholes)
    flags = _may_repeat(runs, counts, similarity=similarity)[: len(prompts.turns)]
    may = {row.prompt_id for row in with_system}
    may |= {prompt_id for prompt_id, flag in zip(prompts.turns, flags.tolist(), strict=True) if flag}
    asked = Counter([row.prompt_id for row in rows])
    return [place for place, row in enumerate(rows) if row.prompt_id in may or asked[row.prompt_id] > 1]


def _texts_may_repeat(texts: Sequence[str], *, similarity: float) -> Flags:
    """Whether each text may be that similar to another one."""
    return _may_repeat(*_runs_by_text(texts), similarity=similarity)


def _runs_by_text(texts: Sequence[str]) -> tuple[Numbers, Places]:
    """The runs of all texts, and how many each has."""
    runs, counts = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)]
    for begin in range(0, len(texts), _ROWS_AT_ONCE):
        batch = texts[begin : begin + _ROWS_AT_ONCE]
        of_batch, owners = _runs(batch)
        runs.append(of_batch)
        counts.append(np.bincount(owners, minlength=len(batch)))
    return np.concatenate(runs), np.concatenate(counts)


def _may_repeat(runs: Numbers, counts: Places, *, similarity: float) -> Flags:
    """Whether each text shares so many runs with other texts that it may be that similar to one of them.

    Of a text's runs a similar one has at least that share, so no more than the rest stands in one place alone.

    Args:
        runs: of all texts in order.
        counts: runs of each text.
    """
    alone = np.append(0, np.cumsum(~in_several_places(runs)))
    ends = np.cumsum(counts)
    may: Flags = alone[ends] - alone[ends - counts] <= (1 - similarity + _ROUNDING) * counts
    return may


def _runs(texts: Sequence[str]) -> tuple[Numbers, Places]:
    """The runs of all texts, and the position of the text of each; a shorter text is one run."""
    runs, _, owners = run_numbers(*with_at_least(*word_numbers(texts), length=_RUN_WORDS), length=_RUN_WORDS)
    return runs, owners


def _prompt(row: PreferenceRow) -> str:
    turns = row.pair.prompt
    return turns[0]["content"] if len(turns) == 1 else "\n".join(turn["content"] for turn in turns)


# The texts of a row that are compared with those of the same kind.
_PARTS: tuple[Callable[[PreferenceRow], str], ...] = (
    _prompt,
    lambda row: row.pair.chosen,
    lambda row: row.pair.rejected,
)


def num_bands(similarity: float) -> int:
    """Bands of the index: as few, so as selective, as still find pairs of that similarity.

    A pair of similarity s shares a band of r rows with probability s^r, so that 128/r bands miss it with
    (1 - s^r)^(128/r) (Leskovec et al., Mining of Massive Datasets, chapter 3.4).
    """
    for rows_per_band in (16, 8, 4, 2):
        bands = _NUM_PERMUTATIONS // rows_per_band
        if math.pow(1 - similarity**rows_per_band, bands) <= _MAX_MISSED:
            return bands
    return _NUM_PERMUTATIONS
