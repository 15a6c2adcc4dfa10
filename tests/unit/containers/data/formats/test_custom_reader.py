"""One's own data needs one function; whatever that function does wrong must be told in its own words and lines."""

from pathlib import Path

import pytest

from containers.harness.errors import BadDataError
from tests.unit.factories.filter_factory import BAD, GOOD, Run

READER = """
import csv

def read_rows(path):
    with open(path, newline="") as stream:
        for question, good, bad in csv.reader(stream):
            yield {"prompt": question, "chosen": good, "rejected": bad, "language": "en"}
"""


def run(folder: Path, reader: str, **settings: object) -> Run:
    folder.mkdir(exist_ok=True)
    (folder / "mine.csv").write_text("".join(f'"What to cook for {n} guests?","{GOOD}","{BAD}"\n' for n in range(50)))
    (folder / "mine.py").write_text(reader)
    return Run(folder, {"train_data": folder / "mine.csv", "reader": folder / "mine.py"}, **settings)


def test_a_form_that_nobody_knows_is_read_by_ones_own_function(tmp_path: Path) -> None:
    done = run(tmp_path, READER)
    assert (done.funnel.rows_read, done.funnel.read_by_language) == (50, (("english", 50),))
    assert {row["chosen"][0]["content"] for row in done.table("train")} == {GOOD}


def test_rows_that_it_yields_wrongly_are_counted_as_of_any_file(tmp_path: Path) -> None:
    broken = READER.replace("yield {", 'yield "no row" if "7" in question else {')
    done = run(tmp_path, broken, max_malformed_fraction=1)
    assert done.dropped_by["not_an_object"] == len([n for n in range(50) if "7" in str(n)])


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        ("def rows(path):\n    yield {}\n", r"holds no function read_rows\(path\)"),
        ("def read_rows(path:\n", r"cannot be loaded: SyntaxError: .*line 1"),
        ("import no_such_module_anywhere\n", r"cannot be loaded: ModuleNotFoundError: .*\(line 1\)"),
        (READER.replace("question, good, bad", "question, good"), r"after row 0: ValueError: too many .*\(line 6\)"),
        (READER.replace('"chosen"', '"better"'), r"has no schema that is known here. Columns found: prompt, better"),
    ],
)
def test_what_is_wrong_with_it_is_said_with_its_line(tmp_path: Path, reader: str, said: str) -> None:
    with pytest.raises(BadDataError, match=said):
        run(tmp_path, reader)
