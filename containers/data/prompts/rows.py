"""The row of a prompt set."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from containers.data.rows import Turn, Value, names_of, prompt_identity


class PromptRow(NamedTuple):
    """A prompt without completions.

    Attributes:
        answer: the reference answer; None where the row has none.
        difficulty: as the row gives it, a fraction such as `3/8` as a number; None where it gives none.
        columns: the further columns that the configuration keeps.
        row_id: digest of prompt and answer.
    """

    prompt: tuple[Turn, ...]
    answer: str | None
    difficulty: float | None
    columns: Mapping[str, Any]
    domain: str
    language: str
    prompt_id: str
    row_id: str

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
    answer: str | None,
    difficulty: float | None = None,
    columns: Mapping[str, Any] | None = None,
) -> PromptRow:
    """Return the row with its digests; `value` is the object that it was read from, with domain and language.

    Raises:
        MalformedRowError: domain or language is present, but no text.
    """
    prompt_id, (domain, language) = prompt_identity(prompt), names_of(value)
    digest = hashlib.sha256(f"{prompt_id}\0{answer}".encode()).hexdigest()
    return PromptRow(
        prompt=prompt,
        answer=answer,
        difficulty=difficulty,
        columns=columns or {},
        domain=domain,
        language=language,
        prompt_id=prompt_id,
        row_id=digest[: len(prompt_id)],
    )
