"""A set read the other way round trains the opposite; but few rows disagree by chance, and good data must go on."""

from pathlib import Path
from typing import Any

import pytest

from containers.contracts.funnel import PolarityCheck
from containers.data.formats.columns import HELPSTEER3
from containers.evals.polarity import agreement_with_scores, score_agreement, verdict_on_scores
from containers.harness.errors import BadDataError
from tests.unit.factories.filter_factory import Run, helpsteer3, write

ANNOTATORS = [{"score": -2}, {"score": -1}, {"score": 1}]


def rows(count: int, *, agreeing: int) -> list[dict[str, Any]]:
    """Rows of different prompts, of which the first have a label that agrees with the mean of its annotators."""
    return [
        helpsteer3(number, individual_preference=ANNOTATORS, overall_preference=-2 if number < agreeing else 2)
        for number in range(count)
    ]


def verdict(agreeing: int, count: int, *, rows_per_prompt: int = 1) -> str:
    votes = [place < agreeing for place in range(count)]
    prompts = [str(place // rows_per_prompt) for place in range(count)]
    return verdict_on_scores(score_agreement("a.jsonl", votes, prompts, confidence=0.95))


def test_labels_against_the_mean_of_the_annotators_stop_the_run_with_the_interval(tmp_path: Path) -> None:
    with pytest.raises(BadDataError) as stopped:
        Run(tmp_path, {"train_data": write(tmp_path / "rows.jsonl", rows(100, agreeing=35))})
    text = str(stopped.value)
    assert "agrees with the scores beside it on 35.0% of 100 rows (95% interval 25.6% to 45.3%)" in text
    assert "less than half, beyond chance" in text and "Correct the sign in the file" in text


def test_labels_that_may_point_either_way_go_on_with_a_warning_and_are_recorded(tmp_path: Path) -> None:
    done = Run(tmp_path, {"train_data": write(tmp_path / "rows.jsonl", rows(100, agreeing=45))})
    (found,) = done.funnel.polarity
    assert (found.num_judged, found.num_agreeing, found.agreement) == (100, 45, 0.45)
    assert found.low < 0.45 < 0.5 < found.high and found.says_nothing
    notes = (done.context.work / "events.jsonl").read_text()
    assert "Warning: " in notes and "on 45.0% of 100 rows (95% interval" in notes and "may be chance" in notes


def test_labels_that_agree_beyond_chance_go_on_without_a_warning(tmp_path: Path) -> None:
    done = Run(tmp_path, {"train_data": write(tmp_path / "rows.jsonl", rows(100, agreeing=70))})
    notes = (done.context.work / "events.jsonl").read_text()
    assert "on 70.0% of 100 rows (95% interval" in notes
    assert "Warning: test/train_data" not in notes


def test_four_of_ten_rows_are_no_evidence_and_none_of_eight_is() -> None:
    assert "may be chance" in verdict(4, 10)
    assert "may be chance" in verdict(0, 7)
    with pytest.raises(BadDataError, match=r"on 0\.0% of 8 rows \(95% interval 0\.0% to 4"):
        verdict(0, 8)


def test_rows_of_one_prompt_are_one_piece_of_evidence() -> None:
    with pytest.raises(BadDataError, match="beyond chance"):
        verdict(12, 40)
    assert "may be chance" in verdict(12, 40, rows_per_prompt=4)


def test_the_prompts_of_the_rows_are_their_clusters() -> None:
    same = [{"role": "user", "content": "One question?"}]
    read = [HELPSTEER3.parse({**row, "context": same}) for row in rows(40, agreeing=0)]
    check = agreement_with_scores("x", read, confidence=0.95)
    assert check is not None and check.num_judged == 40
    assert check.high > 0.5


def test_rows_without_scores_say_nothing() -> None:
    read = HELPSTEER3.parse
    labels = [read(helpsteer3(1)), read(helpsteer3(2, overall_preference=0))]
    assert agreement_with_scores("x", labels, confidence=0.95) is None


def test_an_interval_that_touches_one_half_does_not_stop_the_run() -> None:
    check = PolarityCheck(
        source="a", num_judged=100, num_agreeing=40, agreement=0.4, low=0.31, high=0.5, confidence=0.95
    )
    assert "may be chance" in verdict_on_scores(check)
    with pytest.raises(BadDataError, match="beyond chance"):
        verdict_on_scores(check.model_copy(update={"high": 0.499}))


@pytest.mark.shared_data
def test_real_labels_agree_with_their_annotators(tmp_path: Path, shared_data: Path) -> None:
    done = Run(tmp_path, {"train_data": shared_data / "helpsteer3_schema_train.jsonl.gz"}, check_language_on_text=False)
    (found,) = done.funnel.polarity
    assert found.num_judged > 2700
    assert found.num_agreeing == found.num_judged
    assert found.low > 0.99
