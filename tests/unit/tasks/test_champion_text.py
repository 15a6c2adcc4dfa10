"""What a decision shows: the sentence, the table behind it, what was left out; foreign words cannot break the page."""

from pathlib import Path

from tasks.champion_book import promoted_by_hand
from tasks.champion_record import Comparison, Decision
from tasks.champion_rules import judgement
from tasks.champion_text import decision_markdown, standing_lines
from tests.unit.tasks.champion_factory import MADE_AT, contest, make_book


def test_the_table_has_every_figure_that_decided(tmp_path: Path) -> None:
    frozen = contest(64, 33, both=287).model_copy(update={"seen_in_training": 5})
    safety = contest(0, 3, both=97, name="safety", budget=0.01)
    comparison = Comparison(champion=1, challenger=2, contests=(frozen, safety), confidence=0.95, alpha=0.05)
    decision = Decision(at=MADE_AT, kind="lost", text=judgement(comparison), comparison=comparison)
    text = decision_markdown(make_book(tmp_path).read(), decision)
    assert "| the frozen pairs (accuracy) | 384 | 91.4 % | 83.3 % | +8.1 |" in text
    assert "1.0 points — fell further" in text
    assert "Left out for both, of the frozen pairs: 5 whose prompt one of the two was trained on." in text


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


def test_words_of_people_stay_words(tmp_path: Path) -> None:
    record = make_book(tmp_path).read()
    decision = Decision(at=MADE_AT, kind="promoted", text="<script>alert(1)</script> | [x](y)", by="Ada")
    assert "<script>" not in decision_markdown(record, decision)
