"""Where a filter takes one group whole, only the counts by group show it."""

import csv
from pathlib import Path

import pytest
from PIL import Image

from containers.data.funnel_by_group import groups_of
from tests.unit.factories.filter_factory import GERMAN, Run, helpsteer3, write


@pytest.fixture
def done(tmp_path: Path) -> Run:
    rows = [helpsteer3(number) for number in range(50)]
    rows += [helpsteer3(number, domain="code", language="python") for number in range(50, 60)]
    rows += [helpsteer3(number, domain="stem", overall_preference=0) for number in range(60, 65)]
    rows += [helpsteer3(number, domain="stem", overall_preference=3, response1=GERMAN) for number in range(65, 68)]
    rows += [helpsteer3(68, overall_preference="much better")]
    return Run(tmp_path, {"train_data": write(tmp_path / "rows.jsonl", rows)}, max_malformed_fraction=0.5)


def table(done: Run) -> dict[tuple[str, str, str], tuple[int, int, int]]:
    with open(done.context.output / "funnel_by_group.csv", newline="") as stream:
        return {
            (line["kind"], line["group"], line["filter"]): tuple(
                int(line[name]) for name in ("rows_in", "dropped", "rows_out")
            )
            for line in csv.DictReader(stream)
        }  # type: ignore[return-value, unused-ignore]


def test_each_filter_has_its_rows_in_and_out_for_each_group(done: Run) -> None:
    lines = table(done)
    assert lines["domain", "code", "code_rows"] == (10, 10, 0)
    assert ("domain", "code", "language_column") not in lines
    assert lines["domain", "stem", "tie"] == (5, 5, 0)
    assert lines["domain", "stem", "detected_language"] == (8, 3, 5)
    assert lines["strength", "3", "detected_language"] == (3, 3, 0)
    assert lines["strength", "0", "tie"] == (5, 5, 0)
    assert lines["strength", "unknown", "label_not_an_integer"] == (1, 1, 0)
    assert lines["language", "python", "code_rows"] == (10, 10, 0)
    assert lines["source", "dataset", "label_not_an_integer"] == (69, 1, 68)


def test_the_groups_of_each_kind_add_up_to_all_rows_at_every_filter(done: Run) -> None:
    for groups in groups_of(done.funnel).values():
        for place, step in enumerate(done.funnel.steps):
            assert sum(steps[place].rows_in for steps in groups.values()) == step.rows_in
            assert sum(steps[place].dropped for steps in groups.values()) == step.dropped


def test_the_picture_is_a_picture(done: Run) -> None:
    with Image.open(done.context.output / "plots" / "funnel.png") as image:
        assert image.width > 800 and len(image.convert("RGB").getcolors(maxcolors=1 << 24) or ()) > 10
