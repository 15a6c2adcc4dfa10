"""Rows that everybody can make: without them no reader could reproduce the figures of the shared data."""

from pathlib import Path

import pytest

from benchmarks.filter_rows import FILES, SUITES, write_rows
from benchmarks.made_data import folder_of, write_made_data
from benchmarks.speed_inputs import real_pairs
from containers.data.reader import read_rows
from containers.evals.suites.judge_bench import JUDGE_BENCH
from containers.evals.suites.rm_bench import RM_BENCH

pytestmark = pytest.mark.stages

SHARE = 0.03


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_made_data(folder, seed=4, share=SHARE)
    return folder


def test_the_same_seed_makes_the_same_bytes(made: Path, tmp_path: Path) -> None:
    write_made_data(tmp_path / "same", seed=4, share=SHARE)
    write_made_data(tmp_path / "other", seed=5, share=SHARE)
    names = sorted(path.name for path in made.iterdir())
    assert all((made / name).read_bytes() == (tmp_path / "same" / name).read_bytes() for name in names)
    assert any((made / name).read_bytes() != (tmp_path / "other" / name).read_bytes() for name in names)


def test_every_made_row_is_read(made: Path) -> None:
    for name in FILES:
        rows = list(read_rows(made / name))
        assert len(rows) >= 30
        assert [line.reason for line in rows if line.row is None] == []


def test_the_suites_are_read(made: Path) -> None:
    files = dict(SUITES)
    for suite in (RM_BENCH, JUDGE_BENCH):
        assert len(suite.read(made / files[suite.name]).items) >= 5


def test_draws_of_pairs_are_drawn_by_seed(made: Path) -> None:
    first, again, other = (real_pairs(made, 8, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    with pytest.raises(ValueError, match="pairs are wanted"):
        real_pairs(made, 10_000)


def test_the_filter_finds_copies_among_made_rows(made: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", made, num_rows=200)
    rows = [item.row for item in read_rows(tmp_path / "rows.jsonl") if item.row is not None]
    assert len(rows) == 200
    assert len({(row.pair.prompt[0]["content"], row.pair.chosen) for row in rows}) < 200


def test_a_folder_that_is_given_is_taken_as_it_is(made: Path) -> None:
    with folder_of(made) as folder:
        assert folder == made.resolve()
