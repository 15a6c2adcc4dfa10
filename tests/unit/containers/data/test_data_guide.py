"""A user who reads docs/data.md before a run expects the run to do what it says there."""

import re
from pathlib import Path

import pytest

from containers.evals.polarity import score_agreement, verdict_on_scores
from containers.harness.errors import BadDataError


def _verdict(agreeing: int, count: int) -> str:
    check = score_agreement(
        "a.jsonl", [row < agreeing for row in range(count)], list(map(str, range(count))), confidence=0.95
    )
    return verdict_on_scores(check)


def test_the_guide_tells_the_rule_by_which_labels_stop_a_run(project: Path) -> None:
    text = " ".join((project / "docs/data.md").read_text(encoding="utf-8").split())
    polarity = text[text.index("**Polarity.**") : text.index("3. Language")]
    assert "whole interval" in polarity and "warns" in polarity
    assert not re.search(r"rows or more", polarity), "the interval decides, not a number of rows"
    example = re.search(r"with (\d+) of (\d+) rows in agreement the run stops, with (\d+) of (\d+) it warns", text)
    assert example
    stops, warns = tuple(map(int, example.groups()[:2])), tuple(map(int, example.groups()[2:]))
    with pytest.raises(BadDataError):
        _verdict(*stops)
    assert _verdict(*warns).startswith("Warning: ")
