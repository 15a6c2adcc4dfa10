"""Checkpoints, curves and guards around the Trainer, which by itself exits with 0 after most of what can go wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.contracts.stage_configs import (
    OptimizerSettings,
    TrainingSchedule,
    TrainPolicyConfig,
    TrainRewardModelConfig,
)
from containers.schedule import ResolvedSchedule
from containers.stages.checkpoints import newest_valid_checkpoint, write_checkpoint_manifest
from containers.stages.context import StageContext
from containers.stages.errors import DivergedError, MissingPrerequisiteError
from containers.stages.recorder import Recorder
from containers.stages.recorder_callback import RecorderCallback
from containers.stages.training import common_arguments, join_ranks, spread_over_ranks, write_curves
from tests.unit.stages.spec_factory import make_context

pytestmark = pytest.mark.stages

TWO_RANKS = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)
SCHEDULE = ResolvedSchedule(num_steps=40, steps_per_epoch=20, eval_steps=4, save_steps=8, logging_steps=1)


def _context(tmp_path: Path, **overrides: Any) -> StageContext:
    config = TrainRewardModelConfig(schedule=TrainingSchedule(save_total_limit=2))
    return make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, config, {}, **overrides)


def _checkpoint(context: StageContext, step: int, *, best_step: int | None = None) -> Path:
    folder = context.checkpoints / f"checkpoint-{step}"
    folder.mkdir()
    for name in ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_bytes(f"{name} of step {step}".encode() * 20)
    best = None if best_step is None else f"/another/machine/checkpoints/checkpoint-{best_step}"
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "best_model_checkpoint": best}))
    write_checkpoint_manifest(folder, spec=context.spec)
    return folder


def _newest(context: StageContext) -> str | None:
    found = newest_valid_checkpoint(context.checkpoints, spec=context.spec, recorder=context.recorder)
    return None if found is None else found.name


def _notes(context: StageContext) -> str:
    path = context.work / "events.jsonl"
    return path.read_text() if path.exists() else ""


def test_the_checkpoint_with_the_most_steps_wins_not_the_last_in_the_alphabet(tmp_path: Path) -> None:
    context = _context(tmp_path)
    for step in (8, 16, 104):
        _checkpoint(context, step)
    assert _newest(context) == "checkpoint-104"


@pytest.mark.parametrize(
    "file", ["adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
)
@pytest.mark.parametrize("damage", ["half", "empty", "missing", "one bit", "link"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_is_taken(
    tmp_path: Path, file: str, damage: str
) -> None:
    context = _context(tmp_path)
    _checkpoint(context, 8)
    victim = _checkpoint(context, 16) / file
    content = victim.read_bytes()
    victim.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        victim.symlink_to(tmp_path / "elsewhere")
    elif damage != "missing":
        flipped = bytes([content[0] ^ 1]) + content[1:]
        victim.write_bytes({"half": content[: len(content) // 2], "empty": b"", "one bit": flipped}[damage])
    assert _newest(context) == "checkpoint-8"
    assert sorted(path.name for path in context.checkpoints.iterdir()) == ["checkpoint-8", "damaged-checkpoint-16"]
    assert "checkpoint-16 was set aside as damaged-checkpoint-16" in _notes(context)


def test_a_checkpoint_without_manifest_was_never_finished(tmp_path: Path) -> None:
    context = _context(tmp_path)
    (_checkpoint(context, 8) / "checkpoint_manifest.json").unlink()
    assert _newest(context) is None
    assert "it was never finished" in _notes(context)
    assert "No valid checkpoint, starting at step 0." in _notes(context)


def test_a_checkpoint_whose_best_one_is_damaged_is_not_taken_either(tmp_path: Path) -> None:
    """The Trainer would go on, find no best checkpoint at the end, and keep the last weights with only a warning."""
    context = _context(tmp_path)
    _checkpoint(context, 8, best_step=8)
    (_checkpoint(context, 16, best_step=16) / "optimizer.pt").unlink()
    _checkpoint(context, 24, best_step=16)
    assert _newest(context) == "checkpoint-8"
    assert "the best checkpoint so far, checkpoint-16, is lost" in _notes(context)


def test_a_checkpoint_of_other_work_or_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    writer = _context(tmp_path / "a", batch=TWO_RANKS)
    _checkpoint(writer, 8)
    reader = _context(tmp_path / "a")
    assert _newest(reader) is None
    assert "it was written by 2 ranks, this stage has 1" in _notes(reader)
    _checkpoint(_context(tmp_path / "b", key="d" * 64), 8)
    other = _context(tmp_path / "b")
    assert _newest(other) is None
    assert "it belongs to key dddddddddddd" in _notes(other)


def test_no_folder_and_no_checkpoint_start_at_the_beginning_in_silence(tmp_path: Path) -> None:
    assert newest_valid_checkpoint(tmp_path / "nowhere") is None
    context = _context(tmp_path)
    assert _newest(context) is None
    assert _notes(context) == ""


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


def test_curves_of_a_resumed_run_hold_one_point_per_step_the_later_one(tmp_path: Path) -> None:
    context = _context(tmp_path)
    for step, loss in ((1, 0.9), (2, 0.8), (3, 0.7)):
        context.recorder.metrics(step, {"loss": loss})
    context.recorder.metrics(2, {"eval_loss": 0.85})
    context.recorder.note("Resuming from checkpoint-2.")
    for step, loss in ((3, 0.71), (4, 0.6)):
        context.recorder.metrics(step, {"loss": loss})
    write_curves(context)
    points = [json.loads(line) for line in (context.output / "curves.jsonl").read_text().splitlines()]
    assert [(point["step"], point["values"]) for point in points] == [
        (1, {"loss": 0.9}),
        (2, {"eval_loss": 0.85}),
        (2, {"loss": 0.8}),
        (3, {"loss": 0.71}),
        (4, {"loss": 0.6}),
    ]


def test_arguments_follow_batch_plan_schedule_and_profile(tmp_path: Path) -> None:
    context = _context(tmp_path, batch=TWO_RANKS)
    arguments = common_arguments(
        context, optimizer=OptimizerSettings(warmup_fraction=0.03), schedule=SCHEDULE, batch=TWO_RANKS
    )
    assert arguments["max_steps"] == 40
    assert arguments["per_device_train_batch_size"] == 4
    assert (arguments["eval_steps"], arguments["save_steps"], arguments["save_total_limit"]) == (4, 8, 3)
    # A share below one step would be read as "no warm-up" or as a ratio; 3 % of 40 steps are 2 steps.
    assert arguments["warmup_steps"] == 2
    assert (arguments["seed"], arguments["data_seed"]) == (7, 7)
    assert (arguments["use_cpu"], arguments["bf16"], arguments["tf32"]) == (True, False, None)
    assert (arguments["ddp_backend"], arguments["ddp_timeout"]) == ("gloo", 1800)
    assert not arguments["logging_nan_inf_filter"]


def test_a_trainer_without_evaluation_keeps_no_best_checkpoint(tmp_path: Path) -> None:
    context = make_context(tmp_path, StageName.TRAIN_POLICY, TrainPolicyConfig(), {})
    arguments = common_arguments(
        context, optimizer=OptimizerSettings(), schedule=SCHEDULE, batch=context.spec.batch, evaluates=False
    )
    assert arguments["eval_strategy"] == "no"
    assert "load_best_model_at_end" not in arguments
    assert arguments["save_total_limit"] == 3


def test_a_lone_rank_of_a_plan_for_two_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(MissingPrerequisiteError, match="The batch plan has 2 ranks, this process is one of 1"):
        join_ranks(_context(tmp_path, batch=TWO_RANKS))


def test_without_other_ranks_all_work_is_done_here() -> None:
    assert spread_over_ranks([1, 2, 3], lambda items: [item * 2 for item in items]) == [2, 4, 6]
