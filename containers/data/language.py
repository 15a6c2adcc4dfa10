"""Detection of texts and rows in a wanted language, offline by py3langid (why: benchmarks/language_detection.md).

The rule for a text. Only prose is judged: fenced and inline code, formulas and addresses are removed, and only the
beginning and the end of a long text are read. The text is `wanted` when the wanted languages together have some
probability; `other` when they have not, and one other language is likelier than all the rest together; else
`undecided` ("Yes.", "42", a list of names).

The rule for a row. Prompt, chosen and rejected are judged separately; a row of a prompt set has only the prompt,
and stays if it is `undecided`: many problems are a formula. One `other` drops the row: an English question
with a Chinese answer is no English pair, nor is a translation from English. If all are `undecided`, the
`language` column decides; if the column is empty, at least one text must be `wanted`. In a code row (its column holds
a programming language) only the prompt's prose is judged, and `undecided` keeps the row.
"""

import functools
import importlib.metadata
import re
from dataclasses import dataclass
from typing import Literal, Protocol

from containers.data.language_names import UNKNOWN_LANGUAGE, language_codes, language_names, normalised_language
from containers.data.rows import Row
from containers.harness.errors import BadConfigError
from containers.near_words import nearest_word

# Figures for other thresholds: see the benchmark. Lists of names ("Paris, Lyon, …") look French at up to 0.43.
_MIN_WANTED_PROBABILITY = 0.05
_MIN_OTHER_PROBABILITY = 0.50
_NO_PROSE_CODE = "zxx"
_SAMPLE_CHARACTERS = 300
_SEARCHED_CHARACTERS = 1500
NOT_PROSE = re.compile(
    r"```.*?(?:```|\Z)"
    r"|`[^`\n]*`"
    r"|\$\$.*?\$\$"
    r"|\$[^$\n]*\$"
    r"|\\\[.*?\\\]"
    r"|\\\(.*?\\\)"
    r"|https?://\S+",
    re.DOTALL,
)
_MARKS_OF_NOT_PROSE = ("`", "$", "\\", "://")


class _Identifier(Protocol):
    def rank(self, text: str) -> list[tuple[str, float]]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a text; `language` is the likeliest language: its name if the table has it, else its code."""

    kind: Literal["wanted", "other", "undecided"]
    language: str = UNKNOWN_LANGUAGE


def detector_name() -> str:
    """Library and version, for the funnel."""
    return f"py3langid {importlib.metadata.version('py3langid')}"


def prose_sample(text: str) -> str:
    """Beginning and end of the natural language of `text`, without code, formulas and addresses."""
    if len(text) > 2 * _SEARCHED_CHARACTERS:
        return f"{_prose(text[:_SEARCHED_CHARACTERS])[:_SAMPLE_CHARACTERS]} {_end_of_prose(text)}"
    prose = _prose(text)
    if len(prose) <= 2 * _SAMPLE_CHARACTERS:
        return prose
    return f"{prose[:_SAMPLE_CHARACTERS]} {prose[-_SAMPLE_CHARACTERS:]}"


def _end_of_prose(text: str) -> str:
    end = text[-_SEARCHED_CHARACTERS:]
    # After an odd number of fences the end begins inside code: its first fence closes a block.
    if text[:-_SEARCHED_CHARACTERS].count("```") % 2:
        end = "```" + end
    return _prose(end)[-_SAMPLE_CHARACTERS:]


def _prose(text: str) -> str:
    if any(mark in text for mark in _MARKS_OF_NOT_PROSE):
        text = NOT_PROSE.sub(" ", text)
    return text.strip()


class LanguageJudge:
    """Judges texts and rows against the wanted languages.

    Args:
        languages: names or ISO 639-1 codes: `("english", "de")`.
        stage: has the key of the languages, for messages.

    Raises:
        BadConfigError: a language is not in the table.
    """

    def __init__(self, languages: tuple[str, ...], *, stage: str = "filter_dataset") -> None:
        self._identifier = _load_identifier()
        self._wanted_names = frozenset(map(normalised_language, languages))
        self._wanted_codes = frozenset(code for name in self._wanted_names for code in language_codes(name))
        for name in sorted(self._wanted_names):
            if not language_codes(name):
                near = nearest_word(name, language_names())
                hint = f"Did you mean `{near}`? " if near else ""
                raise BadConfigError(
                    f"{stage}.languages: `{name}` is no language that the detector knows. {hint}"
                    f"Known: {', '.join(language_names())}. Or set check_language_on_text: false."
                )

    def judge_text(self, text: str) -> Verdict:
        """Judge whether the prose of `text` is in a wanted language."""
        sample = prose_sample(text)
        if not sample:
            return Verdict("undecided")
        ranked = self._identifier.rank(sample)
        wanted = [(probability, code) for code, probability in ranked if code in self._wanted_codes]
        if sum(probability for probability, _ in wanted) >= _MIN_WANTED_PROBABILITY:
            return Verdict("wanted", _name_of(max(wanted)[1]))
        by_name: dict[str, float] = {}
        for code, probability in ranked:
            by_name[_name_of(code)] = by_name.get(_name_of(code), 0.0) + probability
        likeliest = max(by_name, key=lambda name: by_name[name])
        if by_name[likeliest] >= _MIN_OTHER_PROBABILITY and likeliest != _NO_PROSE_CODE:
            return Verdict("other", likeliest)
        return Verdict("undecided")

    def judge_row(self, row: Row, *, is_code: bool) -> Verdict:
        """Judge a row: `wanted` keeps it, with the language to record; `other` and `undecided` drop it."""
        prompt = self.judge_text("\n".join(turn["content"] for turn in row.prompt if turn["role"] != "system"))
        if is_code:
            return prompt if prompt.kind == "other" else Verdict("wanted", row.language)
        verdicts = (prompt, *map(self.judge_text, row.completions))
        for verdict in verdicts:
            if verdict.kind == "other":
                return verdict
        if row.language in self._wanted_names:
            return Verdict("wanted", row.language)
        found = next((verdict for verdict in verdicts if verdict.kind == "wanted"), None)
        if found is None and not row.completions:
            return Verdict("wanted", row.language)  # a sum or a formula is in no language
        return found or Verdict("undecided")


_name_of = functools.cache(normalised_language)


@functools.cache
def _load_identifier() -> _Identifier:
    # Imported late: loading the model takes half a second, and a filter without detection needs none.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped,unused-ignore]

    identifier: _Identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return identifier
