"""Prompts for the policy as filter_dataset leaves them, made by hand."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.contracts.names import POLICY_EVAL_PROMPTS_FILE, POLICY_TRAIN_PROMPTS_FILE

_SCHEMA = pa.schema(
    [
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("domain", pa.string()),
        ("prompt_id", pa.string()),
    ]
)


def write_prompts(
    folder: Path, *, train: Sequence[str] = (), evaluation: Sequence[str] = ("Who?", "What is blue?")
) -> Path:
    """A filter_dataset artifact with one user turn for each text."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, texts in ((POLICY_TRAIN_PROMPTS_FILE, train), (POLICY_EVAL_PROMPTS_FILE, evaluation)):
        rows = [
            {"prompt": [{"role": "user", "content": text}], "domain": "general", "prompt_id": f"prompt-{number}"}
            for number, text in enumerate(texts)
        ]
        parquet.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), folder / file)
    return folder
