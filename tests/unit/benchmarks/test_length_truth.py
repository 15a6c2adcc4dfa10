"""A figure that a gate rests on must find a known bias, and must not find one that is not there."""

import pytest

from benchmarks.truth.length import BIASES, WORLDS, Row, markdown, table_rows


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, float], Row]:
    """In a world whose better answers are longer."""
    (world,) = (world for world in WORLDS if world.name == "better answers are longer")
    return {(row.figure, row.bias): row for row in table_rows(runs=6, seed=3, num_pairs=200, worlds=[world])}


@pytest.mark.waits
@pytest.mark.parametrize("figure", ["padding", "repetition", "rewriting"])
def test_edits_of_the_same_answer_find_the_bias(rows: dict[tuple[str, float], Row], figure: str) -> None:
    for bias in BIASES:
        assert rows[figure, bias].mean == pytest.approx(bias, abs=0.08)


def test_the_slope_finds_a_bias_where_there_is_none_and_none_where_there_is_one(
    rows: dict[tuple[str, float], Row],
) -> None:
    assert rows["length slope", 0.0].mean > 0.2
    assert rows["length slope", -0.3].mean == pytest.approx(0, abs=0.1)
    assert rows["length slope", 0.0].coverage < 0.5


def test_the_gate_closes_for_a_biased_model_in_both_directions(rows: dict[tuple[str, float], Row]) -> None:
    rule = {bias: rows["the gate's rule, all edits", bias].closes for bias in BIASES}
    assert rule[-0.3] == rule[0.3] == 1.0
    assert rule[0.0] is not None and rule[0.0] < 0.5


def test_the_table_has_a_line_for_each_figure(rows: dict[tuple[str, float], Row]) -> None:
    lines = markdown(list(rows.values())).splitlines()
    assert len(lines) == 2 + len({figure for figure, _ in rows})
    assert all(line.count("|") == lines[0].count("|") for line in lines)
