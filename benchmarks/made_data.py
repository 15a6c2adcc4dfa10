"""Made rows in the place of ../shared/data, so that every figure can be reproduced: python -m benchmarks.made_data DIR

The folder has the files of the shared data that benchmarks read, in their formats: as many rows, about as many words
a text, and as large a share of rows that a filter finds. The words are made (`made_text`), so what depends on meaning
is not as in the real rows. There is no file of Qwen's vocabulary; a tokenizer is made from the texts, for a model whose
vocabulary is as wide (`speed_inputs`).
"""

import argparse
import gzip
import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.made_text import ARTICLE, length, question, words

Row = dict[str, Any]
# Number of rows, and the median of words and their spread (of the logarithm) of prompts and answers, as in the files.
_PAIRS = {
    "hh_helpful_train.jsonl.gz": (6000, (10, 0.5), (33, 0.9)),
    "hh_helpful_test.jsonl.gz": (1000, (10, 0.5), (33, 0.9)),
    "hh_harmless.jsonl.gz": (1000, (66, 0.9), (25, 0.9)),
    "llmbar_pairs.jsonl": (176, (14, 1.3), (40, 1.2)),
    "truthfulqa_triplets.jsonl": (529, (9, 0.5), (9, 0.5)),
}
_HELPSTEER_ROWS = {"train": 2817, "validation": 380}
_HELPSTEER_PROMPT, _HELPSTEER_ANSWER = (15, 1.3), (30, 1.2)
# Shares of rows that repeat the one before, repeat it but for one word, quote a suite, hold a special token, are code.
_COPIES, _NEAR_COPIES, _QUOTED, _SPECIAL, _CODE = 0.036, 0.007, 0.002, 0.017, 0.007
_RM_BENCH_ROWS, _RM_BENCH_ANSWER, _RM_BENCH_DOMAINS = 482, (150, 0.4), ("chat", "code", "math", "safety-response")
_JUDGE_BENCH_ROWS, _JUDGE_BENCH_PROMPT, _JUDGE_BENCH_ANSWER = 186, (145, 0.6), (340, 0.4)
_TEXTS_OF_A_LANGUAGE = 200
_FEWEST_WORDS = 4


@contextmanager
def folder_of(data: Path | None, *, seed: int = 0) -> Iterator[Path]:
    """Give the folder of real rows, or a temporary one of made rows if there is none."""
    if data is not None:
        yield data.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="made-data-") as name:
        write_made_data(Path(name), seed=seed)
        yield Path(name)


def described(data: Path | None) -> str:
    """Return which rows a figure is from."""
    return "real rows" if data is not None else "made rows"


def write_made_data(folder: Path, *, seed: int = 0, share: float = 1.0) -> None:
    """Write every file; the same bytes for the same seed.

    Args:
        share: of the rows that the real files have.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)  # noqa: S311 - rows, no secret
    suites = {
        "rmbench_pairs.jsonl.gz": _rm_bench(rng, round(share * _RM_BENCH_ROWS)),
        "judgebench_pairs.jsonl.gz": _judge_bench(rng, round(share * _JUDGE_BENCH_ROWS)),
    }
    quoted = [str(row.get("prompt") or row["question"]) for rows in suites.values() for row in rows]
    files: dict[str, list[Row]] = {
        **suites,
        "multilingual_texts.jsonl.gz": _languages(rng, round(share * _TEXTS_OF_A_LANGUAGE)),
    }
    for name, (count, prompt, answer) in _PAIRS.items():
        files[name] = [_turns(rng, f"{name}-{number}", prompt, answer) for number in range(round(share * count))]
    for part, count in _HELPSTEER_ROWS.items():
        rows = _helpsteer(rng, round(share * count), quoted)
        files[f"helpsteer3_schema_{part}.jsonl.gz"] = rows
        files[f"helpsteer3_schema_{part}.provenance.jsonl.gz"] = [{"text_language": "en"} for _ in rows]
    for name, rows in files.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        (folder / name).write_bytes(gzip.compress(text, mtime=0) if name.endswith(".gz") else text)


def _turns(rng: random.Random, name: str, prompt: tuple[float, float], answer: tuple[float, float]) -> Row:
    """Return a pair whose columns are turns, as in the files of HH-RLHF."""

    def said(role: str, content: str) -> list[Row]:
        return [{"role": role, "content": content}]

    asked = question(rng, _length(rng, prompt))
    chosen, rejected = (words(rng, _length(rng, answer)) for _ in range(2))
    sides = {"chosen": said("assistant", chosen), "rejected": said("assistant", rejected)}
    return {"id": name, "source": "made", "prompt": said("user", asked), **sides}


def _helpsteer(rng: random.Random, count: int, quoted: list[str]) -> list[Row]:
    """Return rows in HelpSteer3's schema, with some that a filter finds."""
    rows: list[Row] = []
    while len(rows) < count:
        drawn = rng.random()
        if rows and drawn < _COPIES:
            rows.append(dict(rows[-1]))
        elif rows and drawn < _COPIES + _NEAR_COPIES:
            rows.append({**rows[-1], "response1": f"{rows[-1]['response1']} Really."})
        else:
            rows.append(_helpsteer_row(rng, quoted))
    return rows


def _helpsteer_row(rng: random.Random, quoted: list[str]) -> Row:
    asked = question(rng, _length(rng, _HELPSTEER_PROMPT))
    first, second = (words(rng, _length(rng, _HELPSTEER_ANSWER)) for _ in range(2))
    is_code = rng.random() < _CODE
    if rng.random() < _QUOTED:
        asked = f"{asked} {rng.choice(quoted)}"
    if rng.random() < _SPECIAL:
        first += " <|im_end|>"
    return {
        "domain": "code" if is_code else "general",
        "language": "python" if is_code else "english",
        "context": [{"role": "user", "content": asked}],
        "response1": first,
        "response2": second,
        "overall_preference": rng.choice((-3, -2, -1, 1, 2, 3)),
        "individual_preference": [{"score": 2}],
    }


def _rm_bench(rng: random.Random, count: int) -> list[Row]:
    def answers() -> list[str]:
        return [words(rng, _length(rng, _RM_BENCH_ANSWER)) for _ in range(3)]

    return [
        {
            "id": f"made-{number}",
            "domain": _RM_BENCH_DOMAINS[number % len(_RM_BENCH_DOMAINS)],
            "prompt": question(rng, _length(rng, (12, 0.9))),
            "chosen": answers(),
            "rejected": answers(),
        }
        for number in range(count)
    ]


def _judge_bench(rng: random.Random, count: int) -> list[Row]:
    return [
        {
            "id": f"made-{number}",
            "subset": "mmlu-pro-law",
            "question": question(rng, _length(rng, _JUDGE_BENCH_PROMPT)),
            "response_A": words(rng, _length(rng, _JUDGE_BENCH_ANSWER)),
            "response_B": words(rng, _length(rng, _JUDGE_BENCH_ANSWER)),
            "label": rng.choice(("A>B", "B>A")),
        }
        for number in range(count)
    ]


def _languages(rng: random.Random, count: int) -> list[Row]:
    """Return parts of one paragraph in ten languages, from four words to all of it."""
    rows: list[Row] = []
    for language, text in ARTICLE.items():
        every = text.split()
        for _ in range(count):
            start = rng.randrange(len(every) - _FEWEST_WORDS)
            end = rng.randint(start + _FEWEST_WORDS, len(every))
            part = {"text": " ".join(every[start:end]), "kind": "part_of_a_paragraph"}
            rows.append({"id": f"made-{len(rows)}", "language": language, "is_english": language == "en", **part})
    return rows


def _length(rng: random.Random, of: tuple[float, float]) -> int:
    return length(rng, median=of[0], spread=of[1])


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write_made_data(given.folder, seed=given.seed)


if __name__ == "__main__":
    main()
