"""The prompts that judge the models of the run, which no demonstration may have."""

from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from containers.contracts.names import (
    FROZEN_PAIRS_FILE,
    POLICY_EVAL_PROMPTS_FILE,
    POLICY_FROZEN_PROMPTS_FILE,
    TEST_PAIRS_FILE,
    TUNE_PAIRS_FILE,
)
from containers.data.filters.contamination import SuitePrompt
from containers.data.rows import prompt_identity
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError

# The stages' results that hold such prompts, by the names of the inputs.
SOURCES = ("pairs", "prompts")
_FILES = (
    TUNE_PAIRS_FILE,
    TEST_PAIRS_FILE,
    FROZEN_PAIRS_FILE,
    POLICY_EVAL_PROMPTS_FILE,
    POLICY_FROZEN_PROMPTS_FILE,
)


class HeldOutPrompts(NamedTuple):
    """Prompts with their files, and their identities before they were put into a template."""

    prompts: list[SuitePrompt]
    ids: frozenset[str]


def held_out_prompts(context: StageContext) -> HeldOutPrompts:
    """Return the prompts by which the other filters of the run let models be judged; none where there are no others.

    Raises:
        MissingPrerequisiteError: a file is damaged.
    """
    prompts: list[SuitePrompt] = []
    ids: set[str] = set()
    for source in SOURCES:
        if not context.has_input(source):
            continue
        for file in _FILES:
            path = context.input_path(source) / file
            if path.is_file():
                found, own_ids = _prompts(path)
                prompts += found
                ids |= own_ids
    return HeldOutPrompts(prompts, frozenset(ids))


def _prompts(path: Path) -> tuple[list[SuitePrompt], set[str]]:
    try:
        table = pq.read_table(path)
        turns = table.column("prompt").to_pylist()
        ids = (
            table.column("prompt_id").to_pylist() if "prompt_id" in table.column_names else map(prompt_identity, turns)
        )
        found = [SuitePrompt(path.name, str(line), line, prompt) for line, prompt in enumerate(turns, start=1)]
        return found, set(ids)
    except Exception as error:
        raise MissingPrerequisiteError(f"{path} is no readable parquet file of prompts: {error}") from error
