"""The history of the champions on the terminal: who reigns, how one comes, and who moved it."""

from pathlib import Path

from tasks.champions.book import promoted_by_hand
from tasks.champions.text import standing_lines
from tests.unit.factories.champion_factory import make_book


def test_history_names_who_moved_the_champion_and_why(tmp_path: Path) -> None:
    book = make_book(tmp_path, num_versions=3)
    record = book.update(lambda found: promoted_by_hand(found, 3, by="Ada", reason="wins in red-teaming"))
    lines = list(standing_lines(record))
    assert lines[0] == "demo-reward-model: version 3 is champion."
    assert any(line.startswith("*   3  made 1 January 2026") for line in lines)
    assert lines[-1].endswith("version 3 was promoted by hand, by Ada: wins in red-teaming")


def test_a_line_without_champion_says_how_one_comes(tmp_path: Path) -> None:
    (line,) = standing_lines(make_book(tmp_path, num_versions=0, champions=()).read())
    assert "The first model that passes its gate in a retraining becomes one" in line
