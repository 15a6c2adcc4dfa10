"""Rows for filter_speed: real pairs, repeated with changed words, so that no copy is a duplicate of another."""

import json
from pathlib import Path

from containers.data.reader import read_rows

FILES = ("helpsteer3_schema_train.jsonl.gz", "hh_helpful_train.jsonl.gz", "hh_harmless.jsonl.gz")
SUITES = (("rm_bench", "rmbench_pairs.jsonl.gz"), ("judge_bench", "judgebench_pairs.jsonl.gz"))
_CHANGED_WORD = 7


def write_rows(path: Path, folder: Path, *, num_rows: int) -> None:
    """Write rows in HelpSteer3's schema; copies differ in every 7th word of prompt, chosen and rejected."""
    pairs = [item.row.pair for name in FILES for item in read_rows(folder / name) if item.row is not None]
    with open(path, "w", encoding="utf-8") as stream:
        for number in range(num_rows):
            pair, copy = pairs[number % len(pairs)], number // len(pairs)
            row = {
                "domain": pair.domain,
                "language": "english",
                "context": [{**turn, "content": respelt(turn["content"], copy)} for turn in pair.prompt],
                "response1": respelt(pair.chosen, copy),
                "response2": respelt(pair.rejected, copy),
                "overall_preference": -2,
                "individual_preference": [{"score": -2}, {"score": -1}, {"score": -2}],
            }
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")


def respelt(text: str, copy: int) -> str:
    """Append letters for the copy to every seventh word, from the first word on; copy 0 stays as it is."""
    if not copy:
        return text
    words = text.split(" ")
    words[::_CHANGED_WORD] = [f"{word}{'xyz'[copy % 3] * copy}" for word in words[::_CHANGED_WORD]]
    return " ".join(words)
