"""A training that has diverged must stop at that step; the Trainer goes on to exit code 0."""

import json
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from containers.harness.errors import DivergedError
from containers.harness.recorder import Recorder
from containers.training.callbacks import RecorderCallback

pytestmark = pytest.mark.stages


@pytest.fixture
def callback(tmp_path: Path) -> RecorderCallback:
    return RecorderCallback(Recorder(tmp_path / "events.jsonl"), planned_steps=10)


def _log(callback: RecorderCallback, tmp_path: Path, step: int, **logs: float) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    callback.on_log(arguments, TrainerState(global_step=step), TrainerControl(), logs=logs)


def test_curves_are_recorded_under_their_plain_names_without_throughput(
    callback: RecorderCallback, tmp_path: Path
) -> None:
    _log(callback, tmp_path, 3, loss=0.5, grad_norm=1.0, epoch=0.1, eval_runtime=3.0, train_steps_per_second=4.0)
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["step"], event["values"]) == (3, {"loss": 0.5, "grad_norm": 1.0})


@pytest.mark.parametrize("name", ["loss", "grad_norm", "eval_loss", "reward", "kl"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_number_that_is_not_finite_stops_training_and_is_recorded(
    callback: RecorderCallback, tmp_path: Path, name: str, value: float
) -> None:
    _log(callback, tmp_path, 3, **{name: 0.5})
    with pytest.raises(DivergedError, match=f"^{name} is {value} at step 4 of 10"):
        _log(callback, tmp_path, 4, **{name: value})
    assert json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])["non_finite"] == {name: str(value)}


def test_a_log_line_comes_before_every_save_so_that_no_dead_weights_are_saved(
    callback: RecorderCallback, tmp_path: Path
) -> None:
    control = TrainerControl(should_save=True)
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    callback.on_step_end(arguments, TrainerState(global_step=7), control)
    assert control.should_log


def test_progress_is_told_at_most_once_a_second_and_at_the_end(callback: RecorderCallback, tmp_path: Path) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    for step in range(1, 11):
        callback.on_step_end(arguments, TrainerState(global_step=step), TrainerControl())
    told = [json.loads(line)["done"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert told == [1, 10]
    assert callback.num_steps == 10
