"""The events file is the truth about a training; half a line of a full disk must cost that line and nothing else."""

import json
from pathlib import Path

import pytest

from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.names import StageName
from containers.harness.recorder import Recorder
from containers.rollouts.completion_log import CompletionLog
from containers.training.records import write_curves
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages

ROW = {
    "step": 1, "prompt": [{"role": "user", "content": "Hi"}], "answer": None, "completion": "Hello\u2028there",
    "reward": 0.5, "advantage": 0.0, "num_tokens": 2, "ended": True, "no_value": None, "value_quality": 0.5,
}  # fmt: skip


def test_a_line_that_was_cut_off_is_ended_before_the_next_is_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    Recorder(path).metrics(1, {"loss": 0.5})
    with path.open("a") as stream:
        stream.write('{"time": 1.0, "type": "metrics", "st')
    recorder = Recorder(path)
    recorder.metrics(2, {"loss": 0.4})
    recorder.note("Zwölf Schritte")
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines[1] == '{"time": 1.0, "type": "metrics", "st'
    assert json.loads(lines[2])["step"] == 2
    assert json.loads(lines[3])["text"] == "Zwölf Schritte"
    assert lines[4:] == [""]


def test_a_rank_that_does_not_record_leaves_no_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "events.jsonl", enabled=False)
    recorder.note("nothing")
    recorder.to_disk()
    assert not (tmp_path / "events.jsonl").exists()


GARBAGE = {
    "half a line": b'{"time": 1.0, "type": "metrics", "st\n',
    "zeros of a power cut": b"\0" * 40 + b"\n",
    "half a character": "{'text': 'ö".encode()[:-1] + b"\n",
    "another JSON value": b"3\n[]\n",
    "an event without values": b'{"type": "metrics", "step": 3}\n',
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_finished_training_is_not_lost_to_an_unreadable_line_of_its_curves(tmp_path: Path, garbage: str) -> None:
    context = make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, TrainRewardModelConfig(), {})
    events = context.work / "events.jsonl"
    context.recorder.metrics(1, {"loss": 0.5})
    with events.open("ab") as stream:
        stream.write(GARBAGE[garbage])
    context.recorder.metrics(2, {"loss": 0.4})
    write_curves(context)
    points = [json.loads(line) for line in (context.output / "curves.jsonl").read_text().splitlines()]
    assert [(point["step"], point["values"]) for point in points] == [(1, {"loss": 0.5}), (2, {"loss": 0.4})]
    assert "unreadable lines of events.jsonl were left out of the curves" in events.read_text(errors="replace")


@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_unreadable_line_among_the_completions_costs_that_line(tmp_path: Path, garbage: str) -> None:
    path = tmp_path / "completions.jsonl"
    log = CompletionLog(path, terms=["quality"], resumed_from_step=0)
    log.add([ROW])
    with path.open("ab") as stream:
        stream.write(GARBAGE[garbage])
    log.add([{**ROW, "step": 2}, {**ROW, "step": 3}])
    resumed = CompletionLog(path, terms=["quality"], resumed_from_step=2)
    assert resumed.num_unreadable == GARBAGE[garbage].count(b"\n")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert rows == [ROW, {**ROW, "step": 2}]


def test_a_kill_while_the_completions_are_rewritten_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "completions.jsonl"
    CompletionLog(path, terms=["quality"], resumed_from_step=0).add([ROW, {**ROW, "step": 2}])
    before = path.read_bytes()

    def kill(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            CompletionLog(path, terms=["quality"], resumed_from_step=1)
    assert path.read_bytes() == before
