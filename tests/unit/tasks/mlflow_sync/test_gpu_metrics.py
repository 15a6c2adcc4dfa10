"""What the cards do is seen beside the curves of the training, and a card that gets into trouble is named at once."""

import threading
from pathlib import Path

import pytest

from containers.launch.gpus.cards import GpuState
from containers.launch.gpus.inventory import read_states
from tasks.mlflow_sync import gpu_metrics
from tasks.mlflow_sync.gpu_metrics import gpus_watched
from tasks.store.events import MetricPoint

A = "GPU-5f3c1e0a-0000-4000-8000-00000000000a"
FIRST = "GPU-00000000-0000-4000-8000-000000000000"
WAIT_S = 60


class _Listener:
    def __init__(self) -> None:
        self.samples: list[tuple[MetricPoint, ...]] = []
        self.said: list[str] = []
        self.sampled, self.spoke = threading.Event(), threading.Event()

    def take(self, points: tuple[MetricPoint, ...]) -> None:
        self.samples.append(points)
        if len(self.samples) >= 2:
            self.sampled.set()

    def say(self, line: str) -> None:
        self.said.append(line)
        self.spoke.set()


def test_the_stages_own_cards_are_sampled_under_the_keys_that_mlflow_shows(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "ok")
    heard = _Listener()
    with gpus_watched((A,), on_points=heard.take, say=heard.say, interval_s=0.05):
        assert heard.sampled.wait(timeout=WAIT_S)
    first, second = heard.samples[:2]
    values = {point.key: point.value for point in first}
    assert values == {
        "system/gpu_0_utilization_percentage": 97,
        "system/gpu_0_memory_usage_megabytes": pytest.approx(38000 * 1.048576),
        "system/gpu_0_memory_usage_percentage": pytest.approx(100 * 38000 / 49140),
        "system/gpu_0_power_usage_watts": 151.27,
        "system/gpu_0_temperature_celsius": 64,
        "system/gpu_0_uncorrected_ecc_errors": 0,
    }
    assert {point.step for point in first} == {0} and {point.step for point in second} == {1}
    assert heard.said == []


def test_heat_and_new_memory_errors_are_said_once_when_they_begin(smi: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mode = tmp_path / "mode"
    mode.write_text("hot")
    smi.setenv("FAKE_SMI_FILE", str(mode))
    heard = _Listener()
    with gpus_watched((A,), on_points=heard.take, say=heard.say, interval_s=0.05):
        assert heard.sampled.wait(timeout=WAIT_S)
    assert heard.said == ["GPU 0 runs slower than it could: too hot (the card slows itself down)."]

    mode.write_text("49140:3:0")
    heard = _Listener()
    with gpus_watched((FIRST,), on_points=heard.take, say=heard.say, interval_s=0.05):
        assert heard.sampled.wait(timeout=WAIT_S)
        mode.write_text("49140:3:4")
        assert heard.spoke.wait(timeout=WAIT_S)
    assert heard.said[0].startswith("GPU 0 counts 4 uncorrected ECC errors")


def test_a_driver_that_gives_nothing_stops_no_stage(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "mismatch")
    asked, is_asked_twice = [], threading.Event()

    def read() -> tuple[GpuState, ...]:
        asked.append(1)
        if len(asked) > 2:
            is_asked_twice.set()
        return read_states()

    smi.setattr(gpu_metrics, "read_states", read)
    heard = _Listener()
    with gpus_watched((A,), on_points=heard.take, say=heard.say, interval_s=0.01):
        assert is_asked_twice.wait(timeout=WAIT_S)
    assert heard.samples == []
    assert heard.said == []


def test_a_sample_that_comes_after_the_stage_is_not_delivered(smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "ok")
    is_asked, may_answer = threading.Event(), threading.Event()

    def read() -> tuple[GpuState, ...]:
        is_asked.set()
        assert may_answer.wait(timeout=WAIT_S)
        return read_states()

    smi.setattr(gpu_metrics, "read_states", read)
    heard = _Listener()
    with gpus_watched((A,), on_points=heard.take, say=heard.say, interval_s=0.01):
        assert is_asked.wait(timeout=WAIT_S)
    may_answer.set()
    for thread in threading.enumerate():
        if thread.name == "gpu-metrics":
            thread.join(timeout=WAIT_S)
    assert heard.samples == []


def test_a_stage_without_gpus_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with gpus_watched((), on_points=pytest.fail, say=pytest.fail):
        assert threading.active_count() == before
