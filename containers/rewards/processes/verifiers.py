"""What the processes of rewards compute. They import this module alone: it must not load what a stage needs.

Each function takes the settings of a term and returns the check of one job.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from containers.data.answers import written_answer

_WORDS = re.compile(r"(\\text\{)?[\w ,.'()-]+\}?")
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


class CannotTellError(Exception):
    """A check cannot tell; the message is the reason."""

    is_reason = True


def compares_math(_settings: None) -> Callable[[dict[str, str]], float]:
    """Return the comparison of a job's `gold` with the answer in its `text`; it cannot tell if gold is unreadable."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    ways = (LatexExtractionConfig(), ExprExtractionConfig())

    def read(text: str) -> list[Any]:
        found: list[Any] = parse(_plain(text), ways, parsing_timeout=None)
        return found

    def compare(job: dict[str, str]) -> float:
        gold = read(rf"\boxed{{{job['gold']}}}") or read(job["gold"])
        # math-verify gives text back where it can read nothing; a name or a word is an answer, `x =` is none.
        if all(isinstance(one, str) for one in gold) and not _WORDS.fullmatch(job["gold"].strip()):
            raise CannotTellError("the reference answer is no number, expression or word")
        # A completion's own mark first; without one, the last number or expression in it.
        written = written_answer(job["text"])
        answer = read(rf"\boxed{{{written}}}") if written != job["text"].strip() else read(written)
        return float(bool(answer) and bool(verify(gold, answer, timeout_seconds=None)))

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
