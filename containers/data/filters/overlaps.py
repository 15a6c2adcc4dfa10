"""Records of repetitions: rows like others, prompts like validation prompts or of a suite; each a line of a file."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from containers.contracts.names import CONTAMINATED_FILE, NEAR_DUPLICATES_FILE
from containers.contracts.records import SuiteContamination
from containers.data.filters.contamination import Contamination, SuitePrompt
from containers.data.filters.prompt_words import text_of_turns
from containers.data.funnel import shortened
from containers.data.sources import PlacedRow

_TEXT_CHARACTERS = 200

Line = dict[str, str | int | float]


@dataclass
class Overlaps:
    """Lines of both files, and the findings of each suite; None if there was no search.

    Attributes:
        num_similar_prompts: prompts that are like another one, in any split.
    """

    near_duplicates: list[Line] | None = None
    similar_prompts: list[Line] | None = None
    num_similar_prompts: int | None = None
    contaminated: list[Line] | None = None
    suites: list[SuiteContamination] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write a file for each search that was made, also where nothing was found."""
        files = (
            (NEAR_DUPLICATES_FILE, (self.near_duplicates, self.similar_prompts)),
            (CONTAMINATED_FILE, (self.contaminated,)),
        )
        for name, searches in files:
            made = [lines for lines in searches if lines is not None]
            if made:
                text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for lines in made for line in lines)
                (folder / name).write_text(text, encoding="utf-8")


def near_duplicate_line(row: PlacedRow, *, of: PlacedRow, similarity: float, dropped: bool) -> Line:
    """One line of `near_duplicates.jsonl`: the places of both rows, and their similarity."""
    return {
        **_place(row, dropped=dropped),
        "alike": "row",
        "similarity": round(similarity, 4),
        **_place_of(of),
        "prompt": _last_words(row),
    }


def similar_prompt_line(row: PlacedRow, *, of: PlacedRow, dropped: bool) -> Line:
    """One line of `near_duplicates.jsonl`: a training row, and the validation row whose prompt is like its own."""
    return {
        **_place(row, dropped=dropped),
        "alike": "prompt",
        **_place_of(of),
        "prompt": _last_words(row),
        "of_prompt": _last_words(of),
    }


def contaminated_line(row: PlacedRow, found: Contamination, *, dropped: bool) -> Line:
    """One line of `contaminated.jsonl`: the place of the row, and the suite's item that it repeats."""
    item = found.item
    return {
        **_place(row, dropped=dropped),
        "suite": item.suite,
        "item": item.item_id,
        "item_line": item.line,
        "overlap": round(found.overlap, 4),
        "prompt": _last_words(row),
        "suite_prompt": shortened(text_of_turns(item.prompt), _TEXT_CHARACTERS),
    }


def contamination_by_suite(
    prompts: Mapping[str, Sequence[SuitePrompt]], findings: Sequence[Contamination]
) -> list[SuiteContamination]:
    """How many items of each suite were found, and in how many rows."""
    rows = Counter(finding.item.suite for finding in findings)
    items = {(finding.item.suite, finding.item.item_id) for finding in findings}
    found = Counter(suite for suite, _ in items)
    return [
        SuiteContamination(suite=name, num_items=len(all_items), num_items_found=found[name], num_rows=rows[name])
        for name, all_items in prompts.items()
    ]


def _place(row: PlacedRow, *, dropped: bool) -> Line:
    return {
        "source": row.source,
        "split": row.split,
        "file": row.file,
        "line": row.line,
        "done": "dropped" if dropped else "kept",
    }


def _place_of(row: PlacedRow) -> Line:
    return {"of_source": row.source, "of_file": row.file, "of_line": row.line}


def _last_words(row: PlacedRow) -> str:
    return shortened(row.row.pair.prompt[-1]["content"], _TEXT_CHARACTERS)
