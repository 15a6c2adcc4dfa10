"""Records of repetitions: rows like others, prompts like validation prompts or of a suite; each a line of a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from containers.contracts.funnel import SuiteContamination
from containers.contracts.names import CONTAMINATED_FILE, NEAR_DUPLICATES_FILE
from containers.data.filters.contamination import Contamination, SuitePrompt
from containers.data.filters.prompt_words import text_of_turns
from containers.data.funnel import shortened
from containers.data.rows import prompt_identity
from containers.data.sources import Placed

_TEXT_CHARACTERS = 200

Line = dict[str, str | int | float]


@dataclass
class Overlaps:
    """Lines of both files, and the findings of each suite; None if there was no search.

    Attributes:
        num_similar_prompts: prompts that are like another one, in any split.
        num_contaminated_rows: rows with a prompt of any suite.
    """

    near_duplicates: list[Line] | None = None
    similar_prompts: list[Line] | None = None
    num_similar_prompts: int | None = None
    contaminated: list[Line] | None = None
    num_contaminated_rows: int | None = None
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


def near_duplicate_line(row: Placed, *, of: Placed, similarity: float, dropped: bool) -> Line:
    """One line of `near_duplicates.jsonl`: the places of both rows, and their similarity."""
    return {
        **_place(row, dropped=dropped),
        "alike": "row",
        "similarity": round(similarity, 4),
        **_place_of(of),
        "prompt": _last_words(row),
    }


def similar_prompt_line(row: Placed, *, of: Placed, dropped: bool) -> Line:
    """One line of `near_duplicates.jsonl`: a training row, and the validation row whose prompt is like its own."""
    return {
        **_place(row, dropped=dropped),
        "alike": "prompt",
        **_place_of(of),
        "prompt": _last_words(row),
        "of_prompt": _last_words(of),
    }


def contaminated_lines(row: Placed, found: Sequence[Contamination], *, dropped: bool) -> list[Line]:
    """Lines of `contaminated.jsonl`, one for each suite: the row's place, and the item that it repeats most of."""
    best: dict[str, tuple[SuitePrompt, float]] = {}
    for one in found:
        for item in one.items:
            best.setdefault(item.suite, (item, one.overlap))
    return [
        {
            **_place(row, dropped=dropped),
            "suite": suite,
            "item": item.item_id,
            "item_line": item.line,
            "overlap": round(overlap, 4),
            "prompt": _last_words(row),
            "suite_prompt": shortened(text_of_turns(item.prompt), _TEXT_CHARACTERS),
        }
        for suite, (item, overlap) in best.items()
    ]


def contamination_by_suite(
    items_of: Mapping[str, Sequence[SuitePrompt]], findings: Sequence[Sequence[Contamination]]
) -> list[SuiteContamination]:
    """How many prompts and items of each suite were found, and in how many rows; `findings` are those of each row."""
    found = {(item.suite, item.item_id) for row in findings for one in row for item in one.items}
    suites_of_rows = [{item.suite for one in row for item in one.items} for row in findings]
    counts = []
    for suite, items in items_of.items():
        items_found = [item for item in items if (suite, item.item_id) in found]
        counts.append(
            SuiteContamination(
                suite=suite,
                num_prompts=len({prompt_identity(item.prompt) for item in items}),
                num_prompts_found=len({prompt_identity(item.prompt) for item in items_found}),
                num_items=len(items),
                num_items_found=len(items_found),
                num_rows=sum(suite in suites for suites in suites_of_rows),
            )
        )
    return counts


def _place(row: Placed, *, dropped: bool) -> Line:
    return {
        "source": row.source,
        "split": row.split,
        "file": row.file,
        "line": row.line,
        "done": "dropped" if dropped else "kept",
    }


def _place_of(row: Placed) -> Line:
    return {"of_source": row.source, "of_file": row.file, "of_line": row.line}


def _last_words(row: Placed) -> str:
    return shortened(row.row.prompt[-1]["content"], _TEXT_CHARACTERS)
