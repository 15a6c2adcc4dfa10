"""Edits that change the length of an answer, by rule: padding, repetition, cutting, rewriting. Pure.

| edit | what changes | content | applies to |
|---|---|---|---|
| padding | filler after the answer, until it is twice as long | the same | answers not surely in another language |
| repetition | the answer's own sentences again, all if they fit | the same | every answer |
| longer wording | more words for the same (`wording.py`) | the same | English prose with a place for a rule |
| shorter wording | fewer words for the same | the same | English prose with a place for a rule |
| cutting | the answer ends at the sentence end nearest to its half | less | answers with an end at 30 to 70 % |
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from containers.contracts.certificate import PADDING, REPETITION
from containers.data.language import NOT_PROSE
from containers.evals.wording import longer_wording, shorter_wording

CUTTING = "cutting"
LONGER_WORDING, SHORTER_WORDING = "longer wording", "shorter wording"
EDITS = (PADDING, REPETITION, LONGER_WORDING, SHORTER_WORDING, CUTTING)

# Reasons for which an answer has no edit of a kind.
NO_ROOM = "no room below max_length"
NOT_ENGLISH = "not English"
NO_RULE = "too few places for a rule"
NO_SENTENCE_END = "no sentence end near the middle"
EMPTY = "empty"

FILLER = (
    "I hope this helps.",
    "There is more that could be said about this.",
    "As mentioned above, it is worth keeping all of this in mind.",
    "In other words, the same can be put in several ways, and each of them comes to the same.",
    "To sum up, what was said before still holds, and nothing needs to be added to it at this point.",
    "Please let me know if there is anything else that you would like to know.",
)
# Padded and repeated answers are this many times as long, if max_length allows it.
_TIMES_AS_LONG = 2
# Other wording that changes fewer characters says nothing about length.
_SMALLEST_CHANGE = 0.02
# Share of an answer at which a cut may end.
_CUT_BETWEEN = (0.3, 0.7)

_SENTENCE_END = re.compile(r"[.!?…][\"”’')\]*_]*(?=\s|\Z)|[。！？][\"”’」』）]*|(?<=[^\s:])(?=[ \t]*\n)")
_NO_END = re.compile(r"(?:\b(?:e\.g|i\.e|dr|mr|mrs|ms|vs|st|approx|cf|no)|\b[A-Z]|(?:^|\n)\s*(?:\d+|[a-z]))\Z", re.I)


@dataclass(frozen=True)
class Edit:
    """An edit of one answer.

    Attributes:
        kind: one of EDITS.
        texts: the edited answer, then smaller edits of the kind, for an answer near max_length.
        reason: why there is none; empty if `texts` has one.
    """

    kind: str
    texts: tuple[str, ...] = ()
    reason: str = ""


def edits_of(answer: str, *, is_english: bool) -> tuple[Edit, ...]:
    """Every edit of the answer, in the order of EDITS.

    Args:
        is_english: false if the answer is surely in another language; then no English words are put into it.
    """
    if not answer.strip():
        return tuple(Edit(kind, reason=EMPTY) for kind in EDITS)
    cut = _cut(answer)
    padding, *reworded = (Edit(kind, reason=NOT_ENGLISH) for kind in (PADDING, LONGER_WORDING, SHORTER_WORDING))
    if is_english:
        padding = Edit(PADDING, padded(answer, _TIMES_AS_LONG * len(answer)))
        reworded = [
            _reworded(LONGER_WORDING, answer, longer_wording(answer)),
            _reworded(SHORTER_WORDING, answer, shorter_wording(answer)),
        ]
    return (
        padding,
        Edit(REPETITION, tuple(_repeated(answer))),
        *reworded,
        Edit(CUTTING, (cut,)) if cut else Edit(CUTTING, reason=NO_SENTENCE_END),
    )


def padded(answer: str, length: int) -> tuple[str, ...]:
    """The answer with filler in a new paragraph, of at least `length` characters; then with half of it, down to one.

    Example: an answer of 40 characters, padded to 80, gets two sentences of filler.
    """
    number, size = 1, len(answer) + 2 + len(FILLER[0])
    while size < length:
        size += 1 + len(FILLER[number % len(FILLER)])
        number += 1
    return tuple(_with_filler(answer, number >> halvings) for halvings in range(number.bit_length()))


def _with_filler(answer: str, num_sentences: int) -> str:
    return f"{answer}\n\n{' '.join(FILLER[place % len(FILLER)] for place in range(num_sentences))}"


def _repeated(answer: str) -> Iterator[str]:
    """The answer twice; then with its first half again, its first quarter, an eighth, as sentence ends allow."""
    yield f"{answer}\n\n{answer}"
    ends = _sentence_ends(answer)
    for part in (2, 4, 8):
        if before := [end for end in ends if end <= len(answer) / part]:
            yield f"{answer}\n\n{answer[: before[-1]]}"


def _cut(answer: str) -> str:
    """The answer up to the sentence end nearest to its half; empty if none is near."""
    low, high = (share * len(answer) for share in _CUT_BETWEEN)
    ends = [end for end in _sentence_ends(answer) if low <= end <= high]
    return answer[: min(ends, key=lambda end: abs(end - len(answer) / 2))] if ends else ""


def _sentence_ends(text: str) -> list[int]:
    """Places after the end of a sentence or of a line, outside of code, formulas and addresses."""
    kept = [match.span() for match in NOT_PROSE.finditer(text)]
    return [
        match.end()
        for match in _SENTENCE_END.finditer(text)
        if not any(start < match.end() < end for start, end in kept)
        and not (match[0].startswith(".") and _NO_END.search(text, max(0, match.start() - 12), match.start()))
    ]


def _reworded(kind: str, answer: str, text: str) -> Edit:
    if not text or abs(len(text) - len(answer)) < _SMALLEST_CHANGE * len(answer):
        return Edit(kind, reason=NO_RULE)
    return Edit(kind, (text,))
