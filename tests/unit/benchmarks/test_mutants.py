"""The page of mutants counts what a test could notice, and names each survivor that no person has judged."""

import json
from pathlib import Path

import pytest

from benchmarks.mutants import AREAS, is_counted, outcomes
from benchmarks.mutants_page import VERDICTS, Judgement, Mutant, is_good, judgements, place, report
from benchmarks.provenance import PROJECT

SOURCE = "def scaled(x: float, *, by: float) -> float:\n    return x * by if x is not None else 0 == by\n"
DIFF = """--- mutation diff ---
--- aa.py
+++ ba.py
@@ -1,2 +1,2 @@
 def f():
-    return a   + 1
+    return a - 1
"""


def mutant(outcome: str, before: str = "return a + 1") -> Mutant:
    return Mutant("store", "a.py", 7, "f", "ReplaceBinaryOperator_Add_Sub", outcome, before, "return a - 1")


@pytest.mark.parametrize(
    ("operator", "line", "column", "is_drawn"),
    [
        ("core/ReplaceBinaryOperator_Mul_Div", 2, 13, True),
        ("core/ReplaceBinaryOperator_Mul_Div", 1, 21, False),
        ("core/ReplaceComparisonOperator_IsNot_NotEq", 2, 23, False),
        ("core/ReplaceComparisonOperator_Eq_Is", 2, 45, True),
        ("core/ReplaceBinaryOperator_BitOr_Add", 2, 13, False),
    ],
    ids=["a product", "the star of a signature", "for is", "for ==", "another kind"],
)
def test_what_no_test_could_tell_apart_is_not_drawn(operator: str, line: int, column: int, is_drawn: bool) -> None:
    assert is_counted(operator, SOURCE, line, column) is is_drawn


def test_an_outcome_has_the_line_before_and_after() -> None:
    spot = {
        "module_path": "a.py",
        "start_pos": [7, 4],
        "definition_name": "f",
        "operator_name": "core/ReplaceBinaryOperator_Add_Sub",
    }
    result = {"output": "1 passed", "test_outcome": "survived", "diff": DIFF}
    assert list(outcomes("store", [json.dumps([{"mutations": [spot]}, result])])) == [mutant("survived")]


def test_a_survivor_is_shown_with_its_judgement_and_one_without_is_named() -> None:
    known = {mutant("survived").known_by: Judgement("cosmetic", "a word of a message")}
    mutants = [mutant("survived"), mutant("survived", "return b | c"), *[mutant("killed")] * 18, mutant("stillborn")]
    page = report(mutants, "abc", command="make mutants", areas=["store"], known=known)
    assert "Killed: **18 of 20, 90%**" in page
    assert "1 cosmetic, 1 not judged yet." in page
    assert "some input tells apart" not in page
    same = {mutant("survived").known_by: Judgement("equivalent", "0 is 0")}
    again = report(mutants, "abc", command="make mutants", areas=["store"], known=same)
    assert "Of the 19 that some input tells apart: 95%." in again
    assert "| `return a + 1` → `return a - 1` | cosmetic: a word of a message |" in page
    assert "| `return b \\| c` → `return a - 1` | **not judged yet** |" in page


def test_too_few_killed_or_a_hole_or_an_unjudged_survivor_is_not_good_enough() -> None:
    def known(verdict: str) -> dict[tuple[str, str, str], Judgement]:
        return {mutant("survived").known_by: Judgement(verdict, "why")}

    many = [mutant("survived"), *[mutant("killed")] * 9]
    assert is_good(many, known("equivalent"))
    assert not is_good(many, known("hole"))
    assert not is_good(many, {})
    assert not is_good([mutant("survived")] * 2 + [mutant("killed")] * 8, known("equivalent"))


def test_a_judgement_is_found_whatever_spaces_the_line_has() -> None:
    assert place("a.py", "x = y[1:]", "x = y[ 2:]") == place("a.py", "x  = y[1:]", "x = y[2:]")


def test_each_judgement_is_of_a_line_that_is_still_there() -> None:
    """One whose line is gone would be kept forever, and say nothing."""
    for (file, before, after), found in judgements().items():
        lines = {"".join(line.split()) for line in (PROJECT / file).read_text(encoding="utf-8").splitlines()}
        assert before in lines, (file, before)
        assert found.verdict in VERDICTS and found.why and after != before


def test_every_file_of_an_area_and_every_test_beside_it_is_there() -> None:
    for files in AREAS.values():
        for file, tests in files.items():
            assert (PROJECT / file).is_file()
            for name in tests.split():
                path, _, function = name.partition("::")
                assert (PROJECT / path).exists(), path
                assert f"def {function}(" in Path(PROJECT / path).read_text(encoding="utf-8") if function else True
