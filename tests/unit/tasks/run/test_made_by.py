"""Who made an artifact is told to people: the right run, and less rather than wrong where the file is gone."""

from pathlib import Path

from tasks.run.provenance import MADE_BY_FILE, Provenance, find_maker, note_maker, reused_note


def attempt(folder: Path, number: int) -> Path:
    made = folder / f"attempt-{number}"
    made.mkdir(parents=True)
    return made


def test_the_last_attempt_that_published_is_the_maker(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        note_maker(attempt(tmp_path, number), Provenance(run_name=f"run-{number}", run_id="id"))
    attempt(tmp_path, 11)  # it failed
    assert find_maker(tmp_path).run_name == "run-10"


def test_a_damaged_file_gives_way_to_an_older_one_and_nothing_to_nobody(tmp_path: Path) -> None:
    note_maker(attempt(tmp_path, 1), Provenance(run_name="one", run_id="id"))
    (attempt(tmp_path, 2) / MADE_BY_FILE).write_text('{"run_name": ')
    assert find_maker(tmp_path).run_name == "one"
    assert find_maker(tmp_path / "nowhere") == Provenance()


def test_a_maker_is_told_by_name_id_and_day() -> None:
    at = "2026-11-21T19:33:00+00:00"
    assert Provenance(run_name="demo", run_id="x1").text(at) == "made by run demo (x1) on 21 November 2026, 19:33 UTC"
    assert Provenance(run_id="x1").text(at) == "made by run x1 on 21 November 2026, 19:33 UTC"
    assert Provenance().text(at) == "made 21 November 2026, 19:33 UTC"


def test_a_folder_that_cannot_be_written_costs_the_name_only(tmp_path: Path) -> None:
    note_maker(tmp_path / "missing" / "attempt-1", Provenance(run_name="one"))
    assert find_maker(tmp_path / "missing") == Provenance()


def test_the_note_links_the_curves_where_they_are_known() -> None:
    assert reused_note(Provenance(mlflow_url="http://m/x"), "made so").endswith("[that run's page](http://m/x).")
    assert reused_note(Provenance(), "made by run a*b") == "↺ **Reused:** made by run a\\*b."
