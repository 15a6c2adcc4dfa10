"""Compare libraries that find near-duplicate rows: quality and speed. Figures: near_duplicates.md.

    python -m benchmarks.near_duplicates [--data FOLDER]

FOLDER has helpsteer3_schema_train, hh_helpful_train and hh_harmless; without it, rows are made (`made_data`). Slightly
changed copies of their rows are added, so that there is something to find. Candidates that are not installed are left
out. One process, one thread.
"""

import argparse
import importlib.metadata
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAYON_NUM_THREADS"] = "1"

from benchmarks.made_data import described, folder_of
from benchmarks.provenance import commit, when_and_where
from containers.data.filters.near_duplicates import near_duplicates, num_bands
from containers.data.filters.prompt_words import Prompts
from containers.data.filters.run_numbers import words_of
from containers.data.reader import read_rows
from containers.data.rows import PreferenceRow, make_row

FILES = ("helpsteer3_schema_train.jsonl.gz", "hh_helpful_train.jsonl.gz", "hh_harmless.jsonl.gz")
SIMILARITY = 0.8
PERMUTATIONS = 128
SEED = 1

Runs = list[list[str]]
Pairs = set[tuple[int, int]]


def read(folder: Path) -> list[PreferenceRow]:
    """Return the rows, and a copy of every tenth row with some changed words."""
    rows = [item.row for name in FILES for item in read_rows(folder / name) if item.row is not None]
    draw = random.Random(SEED)  # noqa: S311 - no secret
    changed = []
    for number, row in enumerate(rows[::10]):
        words = row.pair.chosen.split()
        for _ in range(1 + number % 3):
            words[draw.randrange(len(words))] = "something"
        pair = row.pair
        changed.append(make_row({}, prompt=pair.prompt, chosen=" ".join(words), rejected=pair.rejected, margin=1))
    return rows + changed


def runs_of(words: list[str], length: int) -> list[str]:
    """Every run of that many words; a shorter text is one run.

    Example: runs of two in `a b c` are `a b` and `b c`.
    """
    if len(words) <= length:
        return [" ".join(words)] if words else []
    return [" ".join(run) for run in zip(*(words[start:] for start in range(length)), strict=False)]


def runs_by_part(row: PreferenceRow) -> dict[str, list[str]]:
    """Return the runs of words of prompt, chosen and rejected."""
    prompt = "\n".join(turn["content"] for turn in row.pair.prompt)
    texts = {"prompt": prompt, "chosen": row.pair.chosen, "rejected": row.pair.rejected}
    return {name: runs_of(words_of(text), 5) for name, text in texts.items()}


def jaccard(left: Sequence[str], right: Sequence[str]) -> float:
    """Return the intersection of two collections over their union; 1 for two empty ones."""
    first, second = set(left), set(right)
    return len(first & second) / len(first | second) if first or second else 1.0


def exact(runs: Runs) -> Pairs:
    """Return every similar pair, by an inverted index of runs."""
    rows_with: dict[str, list[int]] = defaultdict(list)
    sets = [set(row) for row in runs]
    found: Pairs = set()
    for number, row in enumerate(sets):
        shared: Counter[int] = Counter()
        for run in row:
            shared.update(rows_with[run])
            rows_with[run].append(number)
        for other, count in shared.items():
            if count / (len(row) + len(sets[other]) - count) >= SIMILARITY:
                found.add((number, other))
    return found


def rensa(runs: Runs) -> Iterator[tuple[int, int]]:
    from rensa import RMinHash, RMinHashLSH

    index = RMinHashLSH(threshold=SIMILARITY, num_perm=PERMUTATIONS, num_bands=num_bands(SIMILARITY))
    for number, row in enumerate(runs):
        sketch = RMinHash(num_perm=PERMUTATIONS, seed=SEED)
        sketch.update(row)
        yield from ((number, other) for other in index.query(sketch))
        index.insert(number, sketch)


def datasketch(runs: Runs, hashfunc: Callable[[bytes], int] | None = None) -> Iterator[tuple[int, int]]:
    from datasketch import MinHash, MinHashLSH

    bands = num_bands(SIMILARITY)
    index = MinHashLSH(num_perm=PERMUTATIONS, params=(bands, PERMUTATIONS // bands))
    for number, row in enumerate(runs):
        sketch = MinHash(num_perm=PERMUTATIONS, seed=SEED, **({} if hashfunc is None else {"hashfunc": hashfunc}))
        sketch.update_batch([run.encode() for run in row])
        yield from ((number, other) for other in index.query(sketch))
        index.insert(number, sketch)


def datasketch_xxhash(runs: Runs) -> Iterator[tuple[int, int]]:
    import xxhash

    return datasketch(runs, xxhash.xxh32_intdigest)


CANDIDATES: tuple[tuple[str, str, Callable[[Runs], Iterator[tuple[int, int]]]], ...] = (
    ("rensa, R-MinHash", "rensa", rensa),
    ("datasketch, SHA-1", "datasketch", datasketch),
    ("datasketch, xxhash", "datasketch", datasketch_xxhash),
)


def compare(runs: Runs) -> Iterator[str]:
    started = time.process_time()
    truth = exact(runs)
    yield f"{len(truth)} pairs of rows have a similarity of {SIMILARITY} or more."
    yield "| way | version | rows/s | pairs compared | found | missed |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    speed = f"{len(runs) / (time.process_time() - started):,.0f}"
    yield f"| every pair, inverted index | - | {speed} | all | {len(truth)} | 0 |"
    for name, package, search in CANDIDATES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield f"| {name} | not installed | | | | |"
            continue
        started = time.process_time()
        candidates = list(search(runs))
        found = {pair for pair in candidates if jaccard(runs[pair[0]], runs[pair[1]]) >= SIMILARITY}
        speed = f"{len(runs) / (time.process_time() - started):,.0f}"
        yield f"| {name} | {version} | {speed} | {len(candidates)} | {len(found)} | {len(truth - found)} |"


def stage(rows: Sequence[PreferenceRow], num_changed: int) -> Iterator[str]:
    """Time the step as the stage runs it, without reading."""
    yield "| similarity of every part | rows/s | found | of the changed rows |"
    yield "| ---: | ---: | ---: | ---: |"
    for similarity in (0.7, 0.8, 0.9):
        started = time.process_time()
        prompts = Prompts({row.prompt_id: row.pair.prompt for row in rows})
        found = list(near_duplicates(rows, prompts, similarity=similarity))
        speed = f"{len(rows) / (time.process_time() - started):,.0f}"
        planted = sum(item.position >= len(rows) - num_changed for item in found)
        yield f"| {similarity} | {speed} | {len(found)} | {planted} of {num_changed} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the files named above; made rows without it")
    given, measured = parser.parse_args(), commit()
    with folder_of(given.data) as folder:
        rows = read(folder)
    num_changed = len(rows) - len(rows) * 10 // 11
    started = time.process_time()
    runs = [[f"{name} {run}" for name, part in runs_by_part(row).items() for run in part] for row in rows]
    seconds = time.process_time() - started
    print(f"{when_and_where(measured)}, load {os.getloadavg()[0]:.1f}")
    num_runs, rate = sum(map(len, runs)), len(rows) / seconds
    print(f"{len(rows)} {described(given.data)}, {num_runs:,} runs of words, made at {rate:,.0f} rows/s")
    print("\n".join(compare(runs)))
    print("\n".join(stage(rows, num_changed)))


if __name__ == "__main__":
    main()
