"""Any number of rows like the demo's: the same facts, about people with as many family names as needed."""

import json
import random
import re
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path

from flows.demo.gold import FACTS
from flows.demo.rows import LABELLED_PAIRS_FILE, TRAIN_FILE, VALIDATION_FILE, write_demo_data

_BEGINNINGS = ("Ash", "Black", "Brad", "Clay", "Green", "Hart", "Lock", "Mill", "Stan", "West", "Win", "Wood")
_ENDINGS = ("ford", "ton", "field", "ley", "man", "wood")
FAMILIES = tuple("".join(parts) for parts in product(_BEGINNINGS, _ENDINGS))
_FIRST_NAME = re.compile(rf"\b({'|'.join(name for name, _ in FACTS)})\b")
# The least number of rows of one family; the demo's rows that a filter must find are left out.
ROWS_OF_A_FAMILY = 1900
_TRAINING_ROWS_FOR_A_VALIDATION_ROW = 8
_FEWEST_VALIDATION_ROWS = 32


def write_rows(folder: Path, *, num_rows: int, num_families: int) -> None:
    """Write the three files of the demo with so many training rows, and an eighth as many for validation.

    Whole prompts are taken at random from all families, so that fewer rows are a fair sample of more: pairs per prompt,
    rare words and tokens are the same. The labelled pairs are the demo's own.
    """
    wanted = {
        TRAIN_FILE: num_rows,
        VALIDATION_FILE: max(_FEWEST_VALIDATION_ROWS, num_rows // _TRAINING_ROWS_FOR_A_VALIDATION_ROW),
    }
    folder.mkdir(parents=True)
    by_prompt: dict[str, dict[str, list[str]]] = {file: defaultdict(list) for file in wanted}
    for seed, family in enumerate(FAMILIES[:num_families]):
        with tempfile.TemporaryDirectory() as scratch:
            demo = write_demo_data(Path(scratch), seed=seed)
            for file, lines in by_prompt.items():
                for line in (Path(scratch) / file).read_text(encoding="utf-8").splitlines():
                    renamed, names = _FIRST_NAME.subn(rf"\1 {family}", line)
                    if names:
                        lines[str(json.loads(renamed)["context"])].append(renamed)
            if seed == 0:
                demo.labelled_pairs.rename(folder / LABELLED_PAIRS_FILE)
    for file, lines in by_prompt.items():
        prompts = sorted(lines)
        random.Random(0).shuffle(prompts)  # noqa: S311 - data, not secrets
        rows = [line for prompt in prompts for line in lines[prompt]][: wanted[file]]
        (folder / file).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
