"""Ranks agree whether kept tokens are used: one that reads them would wait for ever for one that makes its share."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.training.token_cache import KEPT_TOKENS_FILE
from tests.unit.factories.kept_tokens_factory import MADE_AGAIN, SFT, USED, attempt, notes, written
from tests.unit.factories.spec_factory import make_spec, run_stage

pytestmark = [pytest.mark.stages, pytest.mark.slow]

PROJECT = Path(__file__).parents[4]
RANK = "tests.unit.factories.two_ranks_with_tokens"
TWO_RANKS = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)


def two_ranks(folder: Path, works: tuple[Path, Path], name: str) -> list[dict[str, Any]]:
    """What each of two ranks reads with its work folder; both come to an end."""
    meeting = folder / f"meeting-{name}"
    commands = [[sys.executable, "-m", RANK, str(rank), str(meeting), str(folder), str(works[rank])] for rank in (0, 1)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT) for command in commands]
    try:
        said = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], said
    return [json.loads(text.splitlines()[-1]) for text in said]


def test_a_rank_that_does_not_see_the_file_has_all_make_the_same_tokens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    made, _ = attempt(monkeypatch, tmp_path, SFT)
    work, other = tmp_path / "work" / "train_sft", tmp_path / "other"
    for works, note in (
        ((work, work), USED),
        ((work, other), f"{MADE_AGAIN}another rank cannot use them."),
    ):
        (work / "events.jsonl").unlink(missing_ok=True)
        found = two_ranks(tmp_path, works, str(len(set(works))))
        assert [rank["examples"] for rank in found] == [repr(made)] * 2
        assert found[0]["notes"][0] == note
    assert not (other / "checkpoints" / KEPT_TOKENS_FILE).exists()


def test_two_ranks_leave_tokens_with_which_the_next_attempt_trains_the_same_model(tmp_path: Path) -> None:
    written(tmp_path)
    inputs = {"pairs": tmp_path / "pairs", "start_model": tmp_path / "start"}
    config = TrainSftConfig(max_length=120, schedule=TrainingSchedule(max_steps=4, eval_steps=4))
    work = tmp_path / "stage"
    work.mkdir()
    spec = make_spec(work, StageName.TRAIN_SFT, config, inputs, batch=TWO_RANKS)
    run_stage(spec, tmp_path / "first.log")
    weights = load_file(work / "output" / "model" / "model.safetensors")
    assert USED not in notes(work)
    shutil.rmtree(work / "checkpoints" / "checkpoint-4")
    run_stage(spec, tmp_path / "second.log")
    assert USED in notes(work)
    again = load_file(work / "output" / "model" / "model.safetensors")
    assert all(weights[name].equal(again[name]) for name in weights)
