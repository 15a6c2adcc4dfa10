"""Synthetic sums with known answers, which a tiny model learns in minutes: pairs, and prompts in published schemas.

Fine-tuning on both sides of the pairs makes a model that is right in about half of the sums; rewards do the rest.
"""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

_NAMES = ("Ana", "Ben", "Cleo", "Dev", "Eva", "Finn")
_THINGS = ("apples", "pens", "coins", "books", "cards", "keys")
_LARGEST, _HELD_OUT = 9, 0.15
HELD_OUT_PREFIX = "held_out_"
PAIRS_FILE, PROMPTS_FILE, PROBLEMS_FILE = "pairs.jsonl", "prompts.jsonl", "problems.jsonl"
SET_FILE = "set.jsonl"


def write_sums(folder: Path, *, seed: int = 0, count: int = 1200) -> list[Path]:
    """Write pairs, their sums as prompts in GSM8K's schema and as problems in POLARIS's; return the files.

    Of each, a part is held out. A sum may be on both sides in other words; a prompt never is. A set of further prompts,
    as many as are held out, is for the measurement of models side by side.

    Args:
        count: prompts, at most 2,500.
    """
    rng = random.Random(seed)  # noqa: S311 - rows, no secret
    sums, num_held_out = _drawn(rng, {}, count=count), round(count * _HELD_OUT)
    rows: dict[str, list[Mapping[str, str]]] = {PAIRS_FILE: [], PROMPTS_FILE: [], PROBLEMS_FILE: []}
    for question, (one, other) in sums.items():
        right = one + other
        wrong = rng.choice([number for number in range(2, 2 * _LARGEST + 1) if number != right])
        rows[PAIRS_FILE].append({"prompt": question, "chosen": f"#### {right}", "rejected": f"#### {wrong}"})
        rows[PROMPTS_FILE].append({"question": question, "answer": f"{one} + {other} = {right}\n#### {right}"})
        # The larger the sum, the smaller the share of attempts that were right.
        share = f"{8 - right * 7 // (2 * _LARGEST)}/8"
        rows[PROBLEMS_FILE].append({"problem": question, "answer": str(right), "difficulty": share})
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for file, made in rows.items():
        written.append(_write(folder / file, made[num_held_out:]))
        written.append(_write(folder / f"{HELD_OUT_PREFIX}{file}", made[:num_held_out]))
    others = _drawn(rng, sums, count=num_held_out)
    answered = ({"question": question, "answer": f"#### {one + other}"} for question, (one, other) in others.items())
    return [*written, _write(folder / SET_FILE, answered)]


def _drawn(rng: random.Random, known: Mapping[str, tuple[int, int]], *, count: int) -> dict[str, tuple[int, int]]:
    """Return new questions with their two numbers."""
    sums: dict[str, tuple[int, int]] = {}
    while len(sums) < count:
        one, other = rng.randint(1, _LARGEST), rng.randint(1, _LARGEST)
        name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
        question = f"{name} has {one} {thing} and gets {other} more. How many {thing} now?"
        if question not in known:
            sums[question] = (one, other)
    return sums


def _write(path: Path, rows: Iterable[Mapping[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
