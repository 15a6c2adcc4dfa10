"""Open questions without a right answer, which judges compare in pairs: MT-Bench with both turns, AlpacaEval.

Source: Zheng et al. 2023, arXiv:2306.05685 (MT-Bench: `question.jsonl` of FastChat); Dubois et al. 2024,
arXiv:2404.04475 (AlpacaEval: `alpaca_eval.json`).
"""

from functools import partial

from containers.data.formats.questions import instruction_of
from containers.data.rows import MalformedRowError, read_prompt
from containers.evals.sets.base import SetItem, SetKind
from containers.evals.suites.base import Row, SuiteItem, list_column, row_id
from containers.evals.suites.rows import Layout, digest, read_suite


def _of_turns(row: Row) -> SuiteItem:
    turns = list_column(row, "turns")
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise MalformedRowError("turn_not_text", repr(turns))
    prompt, *further = (str(turn) for turn in turns)
    asked = read_prompt(prompt)
    return SetItem(
        item_id=row_id(row, "question_id", "id") or digest(asked, further),
        prompt=asked,
        responses=(),
        subset=str(row.get("category") or ""),
        comparisons=(),
        further=tuple(further),
    )


def _of_instruction(row: Row) -> SuiteItem:
    return _plain(row, instruction_of(dict(row)), subset=str(row.get("dataset") or ""))


def _of_prompt(row: Row) -> SuiteItem:
    return _plain(row, row["prompt"], subset=str(row.get("category") or ""))


def _plain(row: Row, prompt: object, *, subset: str) -> SuiteItem:
    asked = read_prompt(prompt)
    item_id = row_id(row, "question_id", "id") or digest(asked, ())
    return SetItem(item_id=item_id, prompt=asked, responses=(), subset=subset, comparisons=())


CHATS = SetKind(
    name="chats",
    title="Open questions",
    measure="win rate against the start model",
    reader=partial(
        read_suite,
        layouts=[
            Layout(("turns",), _of_turns),
            Layout(("instruction",), _of_instruction),
            Layout(("prompt",), _of_prompt),
        ],
    ),
    source="Pairs, by the run's judges; prompts as of MT-Bench (arXiv:2306.05685), AlpacaEval (arXiv:2404.04475)",
)
