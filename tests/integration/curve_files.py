"""Curves as a stage writes them, and as MLflow holds them."""

from pathlib import Path

from mlflow import MlflowClient

from containers.harness.recorder import Recorder


def record_steps(path: Path, steps: range, *, offset: float = 0.0) -> None:
    recorder = Recorder(path)
    for step in steps:
        recorder.metrics(step, {"loss": 1.0 / step + offset})


def history(uri: str, run_id: str, key: str = "loss") -> list[tuple[int, float]]:
    found = MlflowClient(uri).get_metric_history(run_id, key)
    return sorted((item.step, item.value) for item in found)


def one_point_each(steps: range) -> list[tuple[int, float]]:
    return [(step, 1.0 / step) for step in steps]
