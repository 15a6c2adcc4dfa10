"""Rewards are normalised by figures that were saved with the model: wrong or missing ones must not pass for others."""

from pathlib import Path

import pytest

from containers.evals.score_statistics import (
    normalisation_of,
    normalised,
    score_statistics,
    write_score_statistics,
)
from containers.harness.errors import MissingPrerequisiteError

pytestmark = pytest.mark.stages


def test_normalised_scores_have_mean_zero_and_standard_deviation_one() -> None:
    scores = [1.0, 5.0, -2.5, 8.0, 8.0]
    found = score_statistics(normalised(scores, score_statistics(scores, scores_of="these")), scores_of="those")
    assert (found.mean, found.standard_deviation) == pytest.approx((0.0, 1.0))


def test_what_was_saved_with_the_model_is_what_is_read(tmp_path: Path) -> None:
    saved = score_statistics([0.25, 1.5, -3.0], scores_of="validation pairs, both sides")
    write_score_statistics(tmp_path, saved)
    assert normalisation_of(tmp_path, origin="org/name") == saved


@pytest.mark.parametrize("text", [None, "", '{"mean": 1}', '{"mean": NaN}'])
def test_a_model_without_readable_figures_is_refused_with_the_way_out(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "score_statistics.json").write_text(text)
    with pytest.raises(MissingPrerequisiteError, match=r"of org/name cannot be read.*normalise: off"):
        normalisation_of(tmp_path, origin="org/name")


@pytest.mark.parametrize("scores", [[2.0, 2.0], [1e6, 1e6 + 1e-3]])
def test_a_model_that_scores_everything_alike_cannot_be_divided_by_its_spread(
    tmp_path: Path, scores: list[float]
) -> None:
    write_score_statistics(tmp_path, score_statistics(scores, scores_of="these"))
    with pytest.raises(MissingPrerequisiteError, match="gives everything the same score"):
        normalisation_of(tmp_path, origin="org/name")
