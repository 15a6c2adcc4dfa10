"""`rlhf score` refuses what cannot be scored before anything starts, and ends with figures that a person can read."""

from pathlib import Path

import pytest

from containers.contracts.outcome import Metric
from flows.cli.score import named_profile, score, summary_text
from tasks.config.errors import ConfigError
from tests.unit.factories.run_files import write_run


def _score(model: Path, file: Path, out: Path, **changes: object) -> int:
    options: dict[str, object] = {"base": None, "config": None, "profile": None, "runtime": "process", "settings": {}}
    return score(str(model), str(file), out=str(out), **{**options, **changes})  # type: ignore[arg-type]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "q", "response": "x"}\n')
    return path


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("missing.jsonl", None, "does not exist"),
        ("empty.jsonl", b"", r"is empty \(0 bytes\)"),
        ("table.csv", b"prompt,response\nq,x\n", "a table of text"),
        ("list.json", b'[{"prompt": "q"}]', "one JSON list instead of one object per line"),
        ("page.jsonl", b"<!DOCTYPE html><html>", "a web page"),
        ("pickle.jsonl", b"\x80\x04abc", "a Python pickle"),
    ],
)
def test_a_file_without_rows_is_named_before_the_model_is_looked_at(
    tmp_path: Path, name: str, data: bytes | None, problem: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=rf"FILE: .*{name}.* {problem}"):
        _score(tmp_path / "nowhere", tmp_path / name, tmp_path / "scores.jsonl")
    assert not list(tmp_path.glob(".rlhf-score-*"))


def test_the_place_of_the_scores_is_looked_at_first(tmp_path: Path, rows: Path) -> None:
    for out, problem in (
        (tmp_path, "is a folder"),
        (rows, "is the file to score"),
        (tmp_path / "no" / "scores.jsonl", "is no folder that can be written"),
    ):
        with pytest.raises(ConfigError, match=f"--out: .*{problem}"):
            _score(tmp_path / "nowhere", rows, out)


def test_a_model_that_is_none_is_told(tmp_path: Path, rows: Path) -> None:
    with pytest.raises(ConfigError, match=r"--model: `.*nowhere` is no folder here"):
        _score(tmp_path / "nowhere", rows, tmp_path / "scores.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"--model: .*empty has no config\.json, so it is no model folder"):
        _score(tmp_path / "empty", rows, tmp_path / "scores.jsonl")


@pytest.mark.parametrize("settings", [{"max_length": 3}, {"batch_tokens": 0}, {"batch_size": -1}])
def test_a_setting_out_of_bounds_is_told(tmp_path: Path, rows: Path, settings: dict[str, int]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=rf"{name}: .* is too small; wanted at least"):
        _score(tmp_path / "nowhere", rows, tmp_path / "scores.jsonl", settings=settings)


def test_profiles_are_known_by_name_or_by_file(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert named_profile("cpu").num_gpus == 0
    assert named_profile(str(project / "configs" / "gpu_profiles" / "1x48gb.yaml")).num_gpus == 1
    with pytest.raises(ConfigError, match=r"`cpuu`: no such profile\. Did you mean `cpu`\? Or name your own YAML file"):
        named_profile("cpuu")
    (tmp_path / "bad.yaml").write_text("name: bad\nnum_gpus: -1\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml has 1 mistake:\n  num_gpus"):
        named_profile("bad.yaml")


def test_mistakes_of_the_run_are_told(tmp_path: Path, rows: Path) -> None:
    run = write_run(tmp_path, train_policy={"betta": 1})
    with pytest.raises(ConfigError, match=r"train_policy\.betta"):
        _score(tmp_path / "nowhere", rows, tmp_path / "scores.jsonl", config=run)


def test_the_summary_says_what_was_scored_what_was_not_and_how_good_it_is() -> None:
    metrics = (
        Metric(name="rows", value=1010, unit="rows"),
        Metric(name="scored", value=1000, unit="rows"),
        Metric(name="not_scored/too_long", value=8, unit="rows"),
        Metric(name="not_scored/empty_response", value=2, unit="rows"),
        Metric(name="score_mean", value=-0.25, unit="score", count=2000),
        Metric(name="score_std", value=1.5, unit="score", count=2000),
        Metric(name="score_min", value=-4, unit="score", count=2000),
        Metric(name="score_max", value=3, unit="score", count=2000),
        Metric(name="ties", value=40, unit="rows"),
        Metric(name="equal_scores", value=3, unit="rows"),
        Metric(name="accuracy", value=0.713, unit="fraction", ci_low=0.68, ci_high=0.74, count=960),
        Metric(name="seconds", value=50, unit="s"),
        Metric(name="rows_per_second", value=20, unit="rows/s"),
    )
    text = summary_text(metrics, rows="data.jsonl", scores="scores.jsonl")
    assert text.splitlines() == [
        "Rows       1,010 in data.jsonl: 1,000 scored, 10 not (too_long 8, empty_response 2)",
        "Scores     mean −0.250, standard deviation 1.50, from −4.00 to 3.00 (n = 2,000)",
        "Accuracy   71.3 % of pairs (68.0 to 74.0 %, n = 960); 40 ties by label, not counted; 3 with equal scores, "
        "half right",
        "Speed      20.0 rows/s (50 s of scoring)",
        "Scores in  scores.jsonl",
    ]
