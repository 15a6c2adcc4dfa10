"""What the processes of rewards compute. They import this module alone: it must not load what a stage needs.

Each function takes the settings of a term and returns the check of one job.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from containers.data.answers import without_thought, written_answer

_WORDS = re.compile(r"(\\text\{)?[\w ,.'()-]+\}?")
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


class CannotTellError(Exception):
    """A check cannot tell; the message is the reason."""

    is_reason = True


def compares_math(_settings: None) -> Callable[[dict[str, Any]], float]:
    """Return the comparison of a job's `golds`, each of which is right, with the answer in its `text`.

    It cannot tell if no gold can be read.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    ways = (LatexExtractionConfig(), ExprExtractionConfig())

    def read(text: str) -> list[Any]:
        found: list[Any] = parse(_plain(text), ways, parsing_timeout=None)
        return found

    def readable(gold: str) -> list[Any]:
        found = read(rf"\boxed{{{gold}}}") or read(gold)
        # math-verify gives text back where it can read nothing; a name or a word is an answer, `x =` is none.
        is_answer = _WORDS.fullmatch(gold.strip()) or not all(isinstance(one, str) for one in found)
        return found if is_answer else []

    def compare(job: dict[str, Any]) -> float:
        golds = [gold for gold in map(readable, job["golds"]) if gold]
        if not golds:
            raise CannotTellError("the reference answer is no number, expression or word")
        # A completion's own mark first; without one, the last number or expression in it.
        said = without_thought(job["text"])
        written = written_answer(said)
        answer = read(rf"\boxed{{{written}}}") if written != said.strip() else read(written)
        return float(bool(answer) and any(verify(gold, answer, timeout_seconds=None) for gold in golds))

    return compare


def _plain(text: str) -> str:
    """Return the text with one sign for minus, and no thousands separators that are spaces."""
    return re.sub("(?<=\\d)[ \u00a0\u202f](?=\\d{3}\\b)", "", text.replace("\u2212", "-"))


def matches(settings: dict[str, Any]) -> Callable[[str], float]:
    """Return whether a text has a match of the pattern."""
    pattern = re.compile(settings["pattern"], re.DOTALL)
    find = pattern.fullmatch if settings["whole"] else pattern.search
    return lambda text: float(find(text) is not None)


def is_json_of(schema: dict[str, Any]) -> Callable[[str], float]:
    """Return whether a text is JSON of the schema. Its last fenced block counts as the JSON, if there is one."""
    from jsonschema.validators import validator_for

    kind = validator_for(schema)
    kind.check_schema(schema)
    validator = kind(schema)

    def check(text: str) -> float:
        fenced = _FENCED.findall(text)
        try:
            value = json.loads(fenced[-1] if fenced else text)
        except ValueError:
            return 0.0
        return float(validator.is_valid(value))

    return check
