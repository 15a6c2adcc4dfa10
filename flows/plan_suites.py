"""How much a reward model has to read for its suites: a guess from the size of their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.stage_configs import SuiteFile
from flows.plan_inputs import data_files
from flows.row_texts import EXPANSION

# English text with its keys and labels.
_BYTES_PER_TOKEN = 4.0


@dataclass(frozen=True)
class SuiteTokens:
    """Tokens of the suites whose files lie here.

    Attributes:
        num_unknown: suites whose files are not here; the hub is not asked.
    """

    tokens: float
    num_unknown: int


def suite_tokens(suites: Sequence[SuiteFile]) -> SuiteTokens:
    """A token for every four bytes of their text."""
    sizes = [_text_bytes(suite) for suite in suites]
    known = [size for size in sizes if size is not None]
    return SuiteTokens(sum(known) / _BYTES_PER_TOKEN, len(sizes) - len(known))


def _text_bytes(suite: SuiteFile) -> float | None:
    if suite.hub_id is not None:
        return None
    files = data_files(Path(suite.path))
    try:
        sizes = [file.stat().st_size * (1 if file.suffix == ".jsonl" else EXPANSION) for file in files]
    except OSError:
        return None
    return sum(sizes) if sizes else None
