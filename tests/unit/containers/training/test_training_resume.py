"""A resumed training is the same training: its counters, its best checkpoint and its curves are those of one run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trl import RewardTrainer

from containers.contracts.configs.parts.training import OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.harness.errors import DivergedError, StageError
from containers.harness.recorder import Recorder
from containers.stages import train_reward_model, train_sft
from containers.training import loop as training
from containers.training import program
from containers.training.callbacks import RecorderCallback
from containers.training.checkpoints import write_checkpoint_manifest
from tests.unit.factories.reward_model_factory import merged_sha256, reward_model_context, training_info_of
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

PLAN = TrainingSchedule(max_steps=12, eval_steps=4)
Stage = tuple[Callable[[Path], StageContext], Callable[[StageContext], Any]]


class _Crash(BaseException):
    """Stands in for the end of a process: nothing catches it."""


def _crash_in_step(
    monkeypatch: pytest.MonkeyPatch, context: StageContext, run: Callable[[StageContext], Any], step: int
) -> None:
    log = RecorderCallback.on_log

    def on_log(self: Any, args: Any, state: Any, control: Any, **rest: Any) -> None:
        log(self, args, state, control, **rest)
        if state.global_step == step:
            raise _Crash

    with monkeypatch.context() as patch:
        patch.setattr(RecorderCallback, "on_log", on_log)
        with pytest.raises(_Crash):
            run(context)


def _reward_model(folder: Path) -> StageContext:
    return reward_model_context(folder, schedule=PLAN)


def _sft(folder: Path) -> StageContext:
    inputs = {
        "pairs": write_pairs(folder / "pairs", colour_rows(64)),
        "start_model": save_causal_model(folder / "start", scale=0.02),
    }
    config = TrainSftConfig(max_length=256, optimizer=OptimizerSettings(learning_rate=3e-3), schedule=PLAN)
    return make_context(folder, StageName.TRAIN_SFT, config, inputs)


def _history(context: StageContext) -> list[dict[str, float]]:
    """What the Trainer logged, without durations, and without the summary of the last attempt."""
    entries = json.loads((context.output / "trainer_state.json").read_text())["log_history"]
    durations = ("_runtime", "_per_second")
    return [
        {name: value for name, value in entry.items() if not name.endswith(durations)}
        for entry in entries
        if "train_loss" not in entry
    ]


def _counters(context: StageContext) -> dict[str, Any]:
    state = json.loads((context.output / "trainer_state.json").read_text())
    names = ("global_step", "epoch", "best_metric", "best_global_step", "total_flos", "num_input_tokens_seen")
    return {name: state[name] for name in (*names, "best_model_checkpoint")}


@pytest.mark.parametrize("stage", [(_reward_model, train_reward_model.run), (_sft, train_sft.run)])
def test_every_logged_figure_of_a_resumed_training_is_that_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    """TRL counts tokens in the trainer alone, so that the count began anew."""
    make, run = stage
    whole, broken = make(tmp_path / "whole"), make(tmp_path / "broken")
    run(whole)
    _crash_in_step(monkeypatch, broken, run, 6)
    run(broken)
    assert training_info_of(broken).resumed_from_step == 4
    assert _history(broken) == _history(whole)
    assert _counters(broken) == _counters(whole)
    tokens = [entry["num_tokens"] for entry in _history(broken) if "num_tokens" in entry]
    assert len(tokens) == 12 and tokens == sorted(tokens)


def _moved(context: StageContext, target: Path) -> StageContext:
    """The next attempt, in a work folder that was moved meanwhile."""
    shutil.move(context.work, target)
    shutil.rmtree(target / "output")
    (target / "output").mkdir()
    spec = context.spec.model_copy(update={"work_path": str(target)})
    return StageContext(spec=spec, work=target, recorder=Recorder(target / "events.jsonl"))


@pytest.mark.parametrize("last_lost", [False, True])
def test_a_work_folder_may_be_moved_between_two_attempts(tmp_path: Path, last_lost: bool) -> None:
    """The Trainer keeps the best checkpoint's absolute path, and forgets it where that is gone."""
    first = _reward_model(tmp_path)
    train_reward_model.run(first)
    weights = merged_sha256(first.output)
    if last_lost:
        shutil.rmtree(first.checkpoints / "checkpoint-12")
    second = _moved(first, tmp_path / "elsewhere")
    train_reward_model.run(second)
    info = training_info_of(second)
    assert (info.resumed_from_step, info.num_steps) == (8 if last_lost else 12, 12)
    assert merged_sha256(second.output) == weights


def _with_checkpoint_at(tmp_path: Path, step: int, *, claimed: int) -> StageContext:
    """A training whose checkpoint of step 12 is said to be of another step."""
    context = _reward_model(tmp_path)
    train_reward_model.run(context)
    renamed = (context.checkpoints / "checkpoint-12").rename(context.checkpoints / f"checkpoint-{claimed}")
    state = json.loads((renamed / "trainer_state.json").read_text())
    state.update(global_step=step, best_model_checkpoint=None)
    (renamed / "trainer_state.json").write_text(json.dumps(state))
    write_checkpoint_manifest(renamed, spec=context.spec)
    return context


def test_a_resume_that_would_do_nothing_is_an_error(tmp_path: Path) -> None:
    context = _with_checkpoint_at(tmp_path, 16, claimed=16)
    with pytest.raises(StageError, match="checkpoint-16 is past the last step, 12, so a resume would do nothing"):
        train_reward_model.run(context)


def test_a_resume_that_begins_elsewhere_than_its_checkpoint_ended_is_an_error(tmp_path: Path) -> None:
    context = _with_checkpoint_at(tmp_path, 0, claimed=11)
    with pytest.raises(StageError, match="should resume from checkpoint-11 but began at step 0"):
        train_reward_model.run(context)


def test_a_best_checkpoint_that_was_damaged_since_is_not_taken_for_the_best_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _reward_model(tmp_path)
    verify = training.verify_training

    def damaged_meanwhile(trainer: Any, **rest: Any) -> None:
        best = Path(trainer.state.best_model_checkpoint) / "adapter_model.safetensors"
        best.write_bytes(best.read_bytes()[:-1] + b"\0")
        verify(trainer, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(program, "verify_training", damaged_meanwhile)
        with pytest.raises(StageError, match=r"adapter_model\.safetensors does not match its manifest"):
            train_reward_model.run(context)
    train_reward_model.run(context)
    assert training_info_of(context).num_steps == 12


def test_tensorboard_shows_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = _reward_model(tmp_path)
    _crash_in_step(monkeypatch, context, train_reward_model.run, 7)
    train_reward_model.run(context)
    shown = EventAccumulator(str(context.tensorboard)).Reload()
    assert [point.step for point in shown.Scalars("train/loss")] == list(range(1, 13))


def test_a_training_that_diverges_keeps_its_last_good_checkpoint_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _reward_model(tmp_path)
    compute = RewardTrainer.compute_loss

    def compute_loss(self: Any, *arguments: Any, **rest: Any) -> Any:
        found = compute(self, *arguments, **rest)
        if not self.model.training or self.state.global_step != 9:
            return found
        return (found[0] * float("nan"), found[1]) if isinstance(found, tuple) else found * float("nan")

    with monkeypatch.context() as patch:
        patch.setattr(RewardTrainer, "compute_loss", compute_loss)
        with pytest.raises(DivergedError, match=r"loss is nan at step 10 of 12.*checkpoint-8 is the last one"):
            train_reward_model.run(context)
    assert max(path.name for path in context.checkpoints.glob("checkpoint-?")) == "checkpoint-8"
    train_reward_model.run(context)
    assert training_info_of(context).resumed_from_step == 8
