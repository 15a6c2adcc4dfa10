"""Whoever makes the filter faster must not move a row: what it writes for the same rows and settings stays the same.

Recorded with check_language_on_text off, seed 7, pyarrow 25.0.1, rensa 0.5.0, numpy 2.4.6, Python 3.11, x86_64; tables
are compared by their rows, not by their bytes. A change that is meant to keep other rows is recorded anew by what
the failing test prints, with the reason in the commit.
"""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.unit.factories.filter_factory import Run, write

pytestmark = pytest.mark.shared_data

SUITES = {"rm_bench": "rmbench_pairs.jsonl.gz", "judge_bench": "judgebench_pairs.jsonl.gz"}
RECORDED = {
    "human_rows_and_suites": "40cd708430a359b5",
    "transcripts": "6969c2af500fabad",
    "transcripts_beside_validation": "69e4b92661e8d7d3",
    "every_defect": "7b1ed30acf56211d",
    "nearly_the_same_rows": "90dfa4a0f1c97f0b",
    "a_mixture": "e78f8fe86f97eb01",
}
Inputs = dict[str, Path]


def human_rows_and_suites(data: Path, _: Path) -> tuple[Inputs, dict[str, Any]]:
    files = {f"suite_{name}": data / file for name, file in SUITES.items()}
    files["train_data"] = data / "helpsteer3_schema_train.jsonl.gz"
    files["validation_data"] = data / "helpsteer3_schema_validation.jsonl.gz"
    return files, {"suites": tuple({"name": name, "benchmark": name} for name in SUITES)}


def transcripts(data: Path, _: Path) -> tuple[Inputs, dict[str, Any]]:
    return {"train_data": data / "hh_harmless.jsonl.gz"}, {
        "data_percentage": 70,
        "max_rows": 300,
        "write_comparisons": True,
    }


def transcripts_beside_validation(data: Path, _: Path) -> tuple[Inputs, dict[str, Any]]:
    files = {"train_data": data / "hh_helpful_train.jsonl.gz", "validation_data": data / "hh_helpful_test.jsonl.gz"}
    return files, {"near_duplicates": "report", "near_duplicate_similarity": 0.5, "similar_prompt_overlap": 0.6}


def every_defect(data: Path, _: Path) -> tuple[Inputs, dict[str, Any]]:
    files = {"train_data": data / "helpsteer3_schema_malformed.jsonl"}
    return files, {"max_malformed_fraction": 1, "policy_prompt_fraction": 0}


def nearly_the_same_rows(data: Path, folder: Path) -> tuple[Inputs, dict[str, Any]]:
    """Real rows, each again with another case or another word, some with their sides exchanged."""
    lines = gzip.decompress((data / "helpsteer3_schema_train.jsonl.gz").read_bytes()).decode().strip().split("\n")
    rows = [json.loads(line) for line in lines[:400]]
    again = [{**row, "response1": row["response1"].replace(" the ", " THE ", 3)} for row in rows[::2]]
    again += [{**row, "response2": row["response2"].replace(" of ", " off ", 1)} for row in rows[::3]]
    again += [{**row, "overall_preference": -row["overall_preference"]} for row in rows[::5]]
    again += [
        {**row, "context": [{**turn, "content": f"{turn['content']}s"} for turn in row["context"]]} for row in rows[::7]
    ]
    return {"train_data": write(folder / "rows.jsonl", rows + again)}, {
        "similar_prompts": "report",
        "code_rows": "keep",
    }


def a_mixture(data: Path, _: Path) -> tuple[Inputs, dict[str, Any]]:
    files = {
        "train_data_a": data / "hh_harmless.jsonl.gz",
        "train_data_b": data / "human_pref_pairs.jsonl.gz",
        "validation_data_a": data / "hh_helpful_test.jsonl.gz",
    }
    return files, {"mixture": ({"name": "a", "weight": 1.0}, {"name": "b", "weight": 2.0})}


CASES: tuple[Callable[[Path, Path], tuple[Inputs, dict[str, Any]]], ...] = (
    human_rows_and_suites,
    transcripts,
    transcripts_beside_validation,
    every_defect,
    nearly_the_same_rows,
    a_mixture,
)


def digest_of(folder: Path) -> str:
    """Of every file that is no picture; of a table its rows."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.*")):
        rows = json.dumps(pq.read_table(path).to_pylist()).encode() if path.suffix == ".parquet" else path.read_bytes()
        found.update(path.name.encode() + b"\0" + rows + b"\0")
    return found.hexdigest()[:16]


@pytest.mark.waits
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_same_rows_and_settings_give_what_they_always_gave(
    case: Callable[[Path, Path], tuple[Inputs, dict[str, Any]]], tmp_path: Path, shared_data: Path
) -> None:
    inputs, settings = case(shared_data, tmp_path)
    done = Run(tmp_path, inputs, check_language_on_text=False, **settings)
    assert done.funnel.num_near_duplicates is not None
    assert {case.__name__: digest_of(done.context.output)} == {case.__name__: RECORDED[case.__name__]}
