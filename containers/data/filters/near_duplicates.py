"""Search for rows that nearly repeat an earlier row: by MinHash (rensa), then by an exact comparison.

Rows that share too few runs with others are left out first, part by part; few remain for an index of the bands of
their sketches. The similarity of two texts is the number of runs of five words that both have, over those that either
has (Jaccard). The similarity of two rows is that of their least similar part: prompt, chosen or rejected; a row of a
prompt set has one part. So another answer to the same long prompt is no near-duplicate, nor is a row with its sides
exchanged. Why this library: benchmarks/near_duplicates.md.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
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
from containers.data.rows import Row

_RUN_WORDS = 5
_NUM_PERMUTATIONS = 128
_SEED = 1
# At most this share of the pairs of exactly the wanted similarity is never compared.
_MAX_MISSED = 1e-3
# Rows that become numbers together: more are no faster and take more memory.
_ROWS_AT_ONCE = 500
# Similarities are fractions of whole numbers, computed in floating point.
_ROUNDING = 1e-9
# With these factors the same words in another part are another run; odd ones lose no bit.
_FACTORS_OF_PARTS = np.array([1, 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)

# The different runs of each part of a row, sorted.
_Parts = list[Numbers]


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """The row at `position` nearly repeats the earlier one at `of`, which is no near-duplicate itself."""

    position: int
    of: int
    similarity: float


def near_duplicates(rows: Sequence[Row], prompts: Prompts, *, similarity: float) -> Iterator[NearDuplicate]:
    """Yield rows with at least this `similarity` to an earlier row, each with the most similar one.

    Rows are not compared with near-duplicates found earlier, so chains do not remove a whole topic. All
    rows are of one kind. `prompts` are those
    of the rows.
    """
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
    rows: Sequence[Row], positions: Sequence[int], *, similarity: float
) -> Iterator[tuple[int, _Parts, list[bytes]]]:
    """Yield the rows at these positions in order: position, runs of each part, and the bands of the row's sketch."""
    # Imported late: a filter without this step needs no compiled library.
    from rensa import RMinHash  # type: ignore[import-untyped,unused-ignore]

    count = num_bands(similarity)
    for begin in range(0, len(positions), _ROWS_AT_ONCE):
        batch = positions[begin : begin + _ROWS_AT_ONCE]
        texts = [text for position in batch for text in _parts_of(rows[position])]
        num_parts = len(texts) // len(batch)
        runs, owners = _runs(texts)
        ends = np.cumsum(np.bincount(owners, minlength=len(texts)))
        # Rows with every part that similar are that similar as wholes, so the sketch is of the whole.
        wholes = runs * _FACTORS_OF_PARTS[owners % num_parts]
        offsets = np.append(0, ends[num_parts - 1 :: num_parts]).astype(np.uint64)
        digests = RMinHash.digest_matrix_from_flat_token_hashes(wholes, offsets, _NUM_PERMUTATIONS, _SEED).to_rows()
        parts = [np.unique(part) for part in np.split(runs, ends[:-1])]
        for place, position in enumerate(batch):
            bands = np.array(digests[place], dtype=np.uint32).reshape(count, -1)
            keys = [number.to_bytes(1, "big") + band.tobytes() for number, band in enumerate(bands)]
            yield position, parts[num_parts * place : num_parts * (place + 1)], keys


def _similarity(left: _Parts, right: _Parts, *, at_least: float) -> float:
    """Similarity of the least similar part of two rows; 0 if it is less than `at_least`."""
    least = 1.0
    for one, other in zip(left, right, strict=True):
        if min(one.size, other.size) < at_least * max(one.size, other.size) - 1:
            return 0.0
        shared = np.intersect1d(one, other, assume_unique=True).size
        least = min(least, shared / (one.size + other.size - shared))
        if least < at_least:
            return 0.0
    return least


def _rows_that_may_repeat(rows: Sequence[Row], prompts: Prompts, *, similarity: float) -> list[int]:
    """Positions of rows that share enough runs with others, in every part, to be similar to one.

    The parts are checked in order, so that few rows are read to their end.
    """
    positions = _rows_whose_prompts_may_repeat(rows, prompts, similarity=similarity)
    for part in range(len(_parts_of(rows[0])) if rows else 0):
        texts = [_parts_of(rows[position])[part] for position in positions]
        flags = _may_repeat(*_runs_by_text(texts), similarity=similarity)
        positions = [positions[place] for place in np.flatnonzero(flags)]
    return positions


def _rows_whose_prompts_may_repeat(rows: Sequence[Row], prompts: Prompts, *, similarity: float) -> list[int]:
    """The same by the prompts alone, whose words are already numbers; a prompt with a system turn always passes."""
    words, lengths = with_at_least(prompts.words.numbers, prompts.words.lengths, length=_RUN_WORDS)
    runs, _, _ = run_numbers(words, lengths, length=_RUN_WORDS)
    counts = lengths - _RUN_WORDS + 1
    # The system's words count here: the prompt is added a second time with them, and may be like one without.
    with_system = [row for row in rows if row.prompt[0]["role"] == "system"]
    wholes, counts_of_wholes = _runs_by_text([_prompt(row) for row in with_system])
    runs, counts = np.append(runs, wholes), np.append(counts, counts_of_wholes)
    flags = _may_repeat(runs, counts, similarity=similarity)[: len(prompts.turns)]
    may = {row.prompt_id for row in with_system}
    may |= {prompt_id for prompt_id, flag in zip(prompts.turns, flags.tolist(), strict=True) if flag}
    asked = Counter([row.prompt_id for row in rows])
    return [place for place, row in enumerate(rows) if row.prompt_id in may or asked[row.prompt_id] > 1]


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
    """Whether each text shares enough runs with other texts to be that similar to one of them.

    A similar text has at least that share of a text's runs, so at most the rest occurs only once.

    Args:
        runs: of all texts in order.
        counts: runs of each text.
    """
    alone = np.append(0, np.cumsum(~in_several_places(runs)))
    ends = np.cumsum(counts)
    may: Flags = alone[ends] - alone[ends - counts] <= (1 - similarity + _ROUNDING) * counts
    return may


def _runs(texts: Sequence[str]) -> tuple[Numbers, Places]:
    """The runs of all texts, and the position of each run's text; a text of fewer words than a run is one run."""
    runs, _, owners = run_numbers(*with_at_least(*word_numbers(texts), length=_RUN_WORDS), length=_RUN_WORDS)
    return runs, owners


def _prompt(row: Row) -> str:
    turns = row.prompt
    return turns[0]["content"] if len(turns) == 1 else "\n".join(turn["content"] for turn in turns)


def _parts_of(row: Row) -> tuple[str, ...]:
    """The texts of a row, each of which is compared with those of the same kind."""
    return _prompt(row), *row.completions


def num_bands(similarity: float) -> int:
    """Number of bands of the index: the fewest, so the most selective, that still find pairs of that similarity.

    A pair of similarity s shares a band of r rows with probability s^r, so that 128/r bands miss it with
    (1 - s^r)^(128/r) (Leskovec et al., Mining of Massive Datasets, chapter 3.4).
    """
    for rows_per_band in (16, 8, 4, 2):
        bands = _NUM_PERMUTATIONS // rows_per_band
        if math.pow(1 - similarity**rows_per_band, bands) <= _MAX_MISSED:
            return bands
    return _NUM_PERMUTATIONS
