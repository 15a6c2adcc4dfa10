"""What `rlhf serve` refuses is refused before a server starts, in the words of its own options."""

import os
import socket
from pathlib import Path

import pytest

from flows.cli.main import main
from flows.forms.pipeline import CONFIGS_VARIABLE
from flows.serving.session import experiments


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs/runs").mkdir(parents=True)
    (tmp_path / "configs/runs/mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CONFIGS_VARIABLE, "")  # set by the command; taken back after the test
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cron", "0 6 * * 1"), "--cron was given without --retrain"),
        (("--retrain", "mine"), "--retrain was given without --cron"),
        (("--retrain", "mina", "--cron", "0 6 * * 1"), "--retrain: `mina` is no run configuration. Did you mean"),
        (
            ("--retrain", "mine", "--cron", "0 25 * * 1"),
            "`0 25 * * 1` is no schedule: bad hour. Wanted: minute (0 to 59)",
        ),
    ],
)
def test_a_schedule_with_a_mistake_is_refused(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        exit_code: object = main(["serve", *options])
    except SystemExit as ending:  # what argparse does
        exit_code = ending.code
    assert exit_code == 2
    assert said in capsys.readouterr().err
    assert not Path("outputs").exists()


def test_a_taken_port_names_the_option_that_chooses_another(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--mlflow-port", str(port), "--prefect-port", "0"]) == 1
    said = capsys.readouterr().err
    assert f"Port {port} for MLflow cannot be used" in said
    assert "Set --mlflow-port to another port" in said and "set MLFLOW_TRACKING_URI" in said
    assert "tracking." not in said


def test_the_experiments_of_the_configurations_are_looked_at_in_mlflow() -> None:
    folder = Path("configs/runs")
    assert experiments() == ["rlhf-flows"], "an empty file names none"
    (folder / "usual.yaml").write_text("run: {name: usual}")
    (folder / "own.yaml").write_text("tracking: {experiment: dialogues}")
    (folder / "broken.yaml").write_text("tracking: [")
    os.environ[CONFIGS_VARIABLE] = str(folder)
    assert experiments() == ["dialogues", "rlhf-flows"]
