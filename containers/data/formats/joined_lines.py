"""Schemas whose rows are made of two lines: NeMo-Aligner's comparisons, and KTO's unpaired completions.

A damaged line makes its own row malformed, a blank one none. Every line is in a row, or has a reason.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterator

from containers.data.formats.files import Line
from containers.data.formats.schemas import parse_trl
from containers.data.rows import MalformedRowError, PreferenceRow, Value, column
from containers.harness.errors import BadDataError

_SEEN_CHARACTERS = 80
_SIDES = ("true", "false")


def two_lines_as_one(lines: Iterator[Line], _file: str) -> Iterator[Line]:
    """Join good line and bad line to one object of lists."""
    first: Line | None = None
    for line in lines:
        if line.reason == "blank_line":
            yield line
        elif first is None:
            first = line
        else:
            yield _joined(first, line)
            first = None
    if first is not None:
        yield Line(first.number, None, "comparison_without_second_line", first.seen)


def _joined(first: Line, second: Line) -> Line:
    if first.value is None or second.value is None:
        bad = first if first.value is None else second
        return Line(first.number, None, bad.reason, bad.seen)
    return Line(first.number, {name: [first.value[name], second.value.get(name)] for name in first.value})


def pairs_by_label(lines: Iterator[Line], file: str) -> Iterator[Line]:
    """Join each completion labelled true with one labelled false of the same prompt; each is in one pair at most.

    Raises:
        BadDataError: no prompt has both, so there is nothing that a reward model could learn from.
    """
    waiting: dict[bytes, deque[Line]] = {}
    num_pairs = 0
    for line in lines:
        if line.value is None:
            yield line
            continue
        label = _label(line.value.get("label"))
        if label is None:
            seen = repr(line.value.get("label"))[:_SEEN_CHARACTERS]
            yield Line(line.number, None, "label_not_true_or_false", seen)
            continue
        try:
            prompt = _digest(line.value.get("prompt"))
        except RecursionError:
            yield Line(line.number, None, "invalid_json", "nested too deeply")
            continue
        others = waiting.setdefault(prompt, deque())
        if others and _label((others[0].value or {})["label"]) is not label:
            num_pairs += 1
            yield _pair(others.popleft(), line, second_is_good=label)
        else:
            others.append(line)
    alone = sorted((line for lines in waiting.values() for line in lines), key=lambda line: line.number)
    if alone and not num_pairs:
        raise BadDataError(
            f"{file} holds unpaired completions (prompt, completion, label), and no prompt has one labelled true and "
            f"one labelled false. A reward model learns from pairs. Add the other completions of its prompts, or train "
            f"a policy on the rows as they are: train_dpo with the loss `kto`."
        )
    for line in alone:
        seen = f"label {(line.value or {}).get('label')}: {(line.value or {}).get('prompt')!r}"
        yield Line(line.number, None, "no_completion_of_other_label", seen[:_SEEN_CHARACTERS])


def parse_unpaired(value: Value) -> PreferenceRow:
    """Parse two joined lines: `completion` holds the completion labelled true and that labelled false."""
    sides = column(value, "completion")
    if not isinstance(sides, dict) or set(sides) != set(_SIDES):
        raise MalformedRowError("completion_without_other_label", repr(sides)[:_SEEN_CHARACTERS])
    if value.get("prompt") is None:
        raise MalformedRowError("empty_prompt")
    chosen, rejected = (sides[side] for side in _SIDES)
    return parse_trl({**value, "chosen": chosen, "rejected": rejected})


def _pair(first: Line, second: Line, *, second_is_good: bool) -> Line:
    good, bad = (second, first) if second_is_good else (first, second)
    sides = [(line.value or {}).get("completion") for line in (good, bad)]
    return Line(first.number, {**(first.value or {}), "completion": dict(zip(_SIDES, sides, strict=True))})


def _label(label: object) -> bool | None:
    """True or false, also as 1 and 0, since parquet writers turn a column with a gap into floats."""
    return bool(label) if isinstance(label, bool | int | float) and label in (0, 1) else None


def _digest(prompt: object) -> bytes:
    return hashlib.sha256(json.dumps(prompt, sort_keys=True, default=repr).encode()).digest()
