"""A foreign row kept, or an English one lost for being short, must both be rare; measured on real texts."""

import gzip
import json
from pathlib import Path

import pytest

from containers.data.filters.flaws import num_characters
from containers.data.language import LanguageJudge, prose_sample
from containers.data.rows import Pair, PreferenceRow
from containers.harness.errors import BadConfigError

QUESTION = "What should I cook for my family on a rainy Sunday evening?"
ANSWER = "A lentil soup with fresh bread is easy to make and everybody likes it."
GERMAN = "Eine Linsensuppe mit frischem Brot ist leicht zu kochen und schmeckt allen."
FORMULA = "x^2 + 3 = 12"


@pytest.fixture(scope="module")
def english() -> LanguageJudge:
    return LanguageJudge(("english",))


def row(prompt: str, chosen: str, rejected: str, *, language: str = "english") -> PreferenceRow:
    turns = ({"role": "user", "content": prompt},)
    pair = Pair(turns, chosen, rejected, 1.0, "general", language, "id")
    return PreferenceRow(pair=pair, prompt_id="p", is_tie=False, contradicts_annotators=False)


@pytest.mark.parametrize("text", ["Yes.", "42", "12 + 30 = 42", "Paris", "", "$x^2$", "Paris, Lyon, Marseille, Nice"])
def test_what_has_no_language_is_undecided(english: LanguageJudge, text: str) -> None:
    assert english.judge_text(text).kind == "undecided"


def test_a_text_is_wanted_or_other_with_its_language(english: LanguageJudge) -> None:
    assert english.judge_text(ANSWER).kind == "wanted"
    verdict = english.judge_text(GERMAN)
    assert (verdict.kind, verdict.language) == ("other", "german")


def test_several_languages_may_be_wanted_by_name_or_code() -> None:
    judge = LanguageJudge(("en", "German"))
    assert [judge.judge_text(text).kind for text in (ANSWER, GERMAN)] == ["wanted", "wanted"]
    assert judge.judge_text("Pourquoi le ciel est-il bleu pendant la journée ?").kind == "other"


def test_an_unknown_language_is_refused_with_a_near_match() -> None:
    with pytest.raises(BadConfigError, match=r"languages: `englsh` .* Did you mean `english`"):
        LanguageJudge(("englsh",))


def test_code_formulas_and_addresses_are_not_prose() -> None:
    text = "Add `x` here:\n```python\nfür = 'weil'\n```\nThen $y$ at https://example.com/a, done."
    assert " ".join(prose_sample(text).split()) == "Add here: Then at done."


def test_the_end_of_a_long_text_is_read_and_code_cut_in_half_is_still_code() -> None:
    long_code = "Look at this.\n```\n" + "let größe = breite;\n" * 300 + "```\nThat was all of it."
    assert " ".join(prose_sample(long_code).split()) == "Look at this. That was all of it."
    assert len(prose_sample("Many words and more of them. " * 1000)) <= 601


def test_one_response_in_another_language_drops_the_row(english: LanguageJudge) -> None:
    assert english.judge_row(row(QUESTION, ANSWER, ANSWER), is_code=False).kind == "wanted"
    for foreign in (row(GERMAN, ANSWER, ANSWER), row(QUESTION, GERMAN, ANSWER), row(QUESTION, ANSWER, GERMAN)):
        assert english.judge_row(foreign, is_code=False).kind == "other"


def test_where_nothing_is_decided_the_column_decides(english: LanguageJudge) -> None:
    assert english.judge_row(row(FORMULA, "3", "4"), is_code=False).kind == "wanted"
    assert english.judge_row(row(FORMULA, "3", "4", language="unknown"), is_code=False).kind == "undecided"


def test_a_row_without_language_gets_the_one_that_was_found(english: LanguageJudge) -> None:
    verdict = english.judge_row(row(QUESTION, "3", "4", language="unknown"), is_code=False)
    assert (verdict.kind, verdict.language) == ("wanted", "english")


def test_of_a_code_row_only_the_prose_of_the_prompt_counts(english: LanguageJudge) -> None:
    code = "```python\nprint('Guten Tag, wie geht es Ihnen heute?')\n```"
    kept = english.judge_row(row(f"Explain this program to me.\n{code}", GERMAN, "x", language="python"), is_code=True)
    assert (kept.kind, kept.language) == ("wanted", "python")
    assert english.judge_row(row(f"{GERMAN}\n{code}", "x", "y", language="python"), is_code=True).kind == "other"
    assert english.judge_row(row(code, "x", "y", language="python"), is_code=True).kind == "wanted"


def test_length_counts_the_prompt_and_the_longer_response() -> None:
    assert num_characters(row("12345", "123", "1")) == 8


@pytest.mark.shared_data
def test_english_is_told_with_precision_and_recall_of_at_least_098(english: LanguageJudge, shared_data: Path) -> None:
    with gzip.open(shared_data / "multilingual_texts.jsonl.gz", "rt", encoding="utf-8") as stream:
        texts = [item for line in stream if (item := json.loads(line))["is_english"] is not None]
    assert len(texts) == 2758
    found = [english.judge_text(item["text"]).kind for item in texts]
    wanted = [item["is_english"] for item, kind in zip(texts, found, strict=True) if kind == "wanted"]
    assert sum(wanted) / len(wanted) >= 0.98
    assert sum(wanted) / sum(item["is_english"] for item in texts) >= 0.98
    lost = [item for item, kind in zip(texts, found, strict=True) if item["is_english"] and kind == "other"]
    assert lost == []
