"""The row of a prompt set."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from containers.data.rows import Turn, Value, names_of, prompt_identity


class PromptRow(NamedTuple):
    """A prompt without completions.

    Attributes:
        answer: the reference answer; None where the row has none.
        other_answers: further answers that are right too.
        difficulty: as the row gives it, a fraction such as `3/8` as a number; None where it gives none.
        columns: the further columns that the configuration keeps.
        row_id: digest of prompt and answers.
    """

    prompt: tuple[Turn, ...]
    answer: str | None
    difficulty: float | None
    columns: Mapping[str, Any]
    domain: str
    language: str
    prompt_id: str
    row_id: str
    other_answers: tuple[str, ...] = ()

    @property
    def completions(self) -> tuple[str, ...]:
        """None: the policy writes them."""
        return ()

    def in_language(self, language: str) -> "PromptRow":
        """Return the row with another language."""
        return self._replace(language=language)


def make_prompt_row(
    value: Value,
    *,
    prompt: tuple[Turn, ...],
    answers: tuple[str, ...],
    difficulty: float | None = None,
    columns: Mapping[str, Any] | None = None,
) -> PromptRow:
    """Return the row with its digests; `value` is the object that it was read from, with domain and language.

    Args:
        answers: each of them is right; empty: the row has no reference answer.

    Raises:
        MalformedRowError: domain or language is present, but no text.
    """
    prompt_id, (domain, language) = prompt_identity(prompt), names_of(value)
    digest = hashlib.sha256("\0".join((prompt_id, *answers)).encode()).hexdigest()
    return PromptRow(
        prompt=prompt,
        answer=next(iter(answers), None),
        other_answers=answers[1:],
        difficulty=difficulty,
        columns=columns or {},
        domain=domain,
        language=language,
        prompt_id=prompt_id,
        row_id=digest[: len(prompt_id)],
    )
