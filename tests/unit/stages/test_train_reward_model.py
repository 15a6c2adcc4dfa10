"""The reward model decides what the policy becomes: what is saved must be what was trained, on the right labels."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import TrainingInfo
from containers.contracts.spec import StageSpec
from containers.contracts.stage_configs import (
    LoraSettings,
    OptimizerSettings,
    TrainingSchedule,
    TrainRewardModelConfig,
)
from containers.stages import train_reward_model
from containers.stages.context import StageContext
from containers.stages.errors import BadConfigError, BadDataError, DivergedError, StageError
from containers.stages.models import save_merged
from containers.stages.sample_predictions import both_conversations, read_sample_predictions
from containers.stages.scoring import RewardScorer
from tests.unit.stages.spec_factory import colour_rows, flipped, make_context, make_spec, write_pairs
from tests.unit.stages.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

FAST = OptimizerSettings(learning_rate=3e-3)
SCHEDULE = TrainingSchedule(max_steps=24, eval_steps=4)


def _config(**changes: Any) -> TrainRewardModelConfig:
    fields: dict[str, Any] = {
        "max_length": 256,
        "lora": LoraSettings(r=4, alpha=8),
        "gradient_checkpointing": False,
        "optimizer": FAST,
        "schedule": SCHEDULE,
    }
    return TrainRewardModelConfig(**{**fields, **changes})


def _context(
    tmp_path: Path,
    *,
    rows: Sequence[Mapping[str, Any]] | None = None,
    spec: Mapping[str, Any] | None = None,
    **changes: Any,
) -> StageContext:
    pairs = write_pairs(tmp_path / "pairs", colour_rows(96) if rows is None else rows)
    start = tmp_path / "start"
    if not start.exists():
        save_causal_model(start, scale=0.02)
    inputs = {"pairs": pairs, "start_model": start}
    return make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, _config(**changes), inputs)


def _values(metrics: tuple[Metric, ...]) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics}


def _weights_sha256(context: StageContext) -> str:
    return hashlib.sha256((context.output / "merged" / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[StageContext, dict[str, float]]:
    context = _context(tmp_path_factory.mktemp("trained"))
    return context, _values(train_reward_model.run(context))


def test_it_learns_pairs_that_can_be_learnt(trained: tuple[StageContext, dict[str, float]]) -> None:
    assert trained[1]["validation_accuracy"] >= 0.95
    assert trained[1]["num_steps"] == 24


def test_merged_model_loaded_by_plain_transformers_gives_the_logged_scores(
    trained: tuple[StageContext, dict[str, float]],
) -> None:
    output = trained[0].output
    model = AutoModelForSequenceClassification.from_pretrained(output / "merged").eval()
    tokenizer = AutoTokenizer.from_pretrained(output / "merged")
    samples = read_sample_predictions(output)
    assert len(samples) == 24
    for sample in samples:
        for conversation, logged in zip(
            both_conversations(sample), (sample.score_chosen, sample.score_rejected), strict=True
        ):
            inputs = tokenizer.apply_chat_template(conversation, return_tensors="pt", return_dict=True)
            with torch.no_grad():
                assert model(**inputs).logits[0, 0].item() == pytest.approx(logged, abs=1e-4)


def test_adapter_on_the_base_model_gives_the_logged_scores_head_included(
    trained: tuple[StageContext, dict[str, float]],
) -> None:
    context = trained[0]
    base = AutoModelForSequenceClassification.from_pretrained(context.input_path("start_model"), num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(context.output / "adapter")
    base.config.pad_token_id = tokenizer.pad_token_id
    adapted = PeftModel.from_pretrained(base, context.output / "adapter")
    samples = read_sample_predictions(context.output)
    scorer = RewardScorer(adapted, tokenizer, max_length=256, batch_size=8)
    found = scorer.score([side for sample in samples for side in both_conversations(sample)])
    logged = [score for sample in samples for score in (sample.score_chosen, sample.score_rejected)]
    assert found == pytest.approx(logged, abs=1e-4)


def test_records_of_the_training_are_whole_and_name_no_path_of_this_machine(
    trained: tuple[StageContext, dict[str, float]],
) -> None:
    context = trained[0]
    info = TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())
    assert (info.num_steps, info.planned_steps, info.num_examples) == (24, 24, 96)
    assert info.trainable_parameters < info.total_parameters
    assert info.best_metric_name == "eval_loss" and info.best_step in range(4, 25, 4)
    curves = [json.loads(line) for line in (context.output / "curves.jsonl").read_text().splitlines()]
    assert [point["step"] for point in curves if "loss" in point["values"]] == list(range(1, 25))
    assert [point["step"] for point in curves if "eval_loss" in point["values"]] == [4, 8, 12, 16, 20, 24]
    assert list(context.tensorboard.glob("events.out.tfevents.*"))
    files = [path for path in context.output.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if str(context.work.parents[1]).encode() in path.read_bytes()]


def test_the_checkpoint_with_the_lowest_eval_loss_is_what_is_saved(tmp_path: Path) -> None:
    """The held-out pairs say the opposite of the training pairs, so the first checkpoint is the best one."""
    context = _context(tmp_path)
    write_pairs(tmp_path / "pairs", colour_rows(96), flipped(colour_rows(24, seed=99)))
    train_reward_model.run(context)
    info = TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())
    assert info.best_step == 4
    last = json.loads((context.output / "trainer_state.json").read_text())["log_history"]
    assert last[-2]["eval_loss"] > 2 * (info.best_metric or 0)
    sample = read_sample_predictions(context.output)[0]
    assert abs(sample.score_chosen - sample.score_rejected) < 0.5


def test_flipped_labels_teach_the_opposite_and_fixture_rows_show_it(tmp_path: Path) -> None:
    """The training loss falls just the same; only pairs whose order is known tell a wrong sign."""
    context = _context(tmp_path, rows=flipped(colour_rows(96)))
    write_pairs(tmp_path / "pairs", flipped(colour_rows(96)), flipped(colour_rows(24, seed=99)))
    assert _values(train_reward_model.run(context))["validation_accuracy"] > 0.9
    scorer = RewardScorer.load(
        context.output / "merged", device="cpu", dtype=torch.float32, max_length=256, batch_size=8
    )
    fixture = colour_rows(30, seed=5)
    scores = scorer.score([row["prompt"] + row[side] for row in fixture for side in ("chosen", "rejected")])
    right = sum(chosen > rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True))
    assert right / len(fixture) < 0.5


def test_a_learning_rate_of_1e30_is_a_divergence_with_its_step_and_no_model(tmp_path: Path) -> None:
    context = _context(tmp_path, optimizer=OptimizerSettings(learning_rate=1e30, warmup_fraction=0))
    with pytest.raises(DivergedError, match=r"is (nan|inf) at step \d+ of 24.*learning_rate \(1e\+30\)"):
        train_reward_model.run(context)
    assert not (context.output / "merged").exists()
    assert not list(context.checkpoints.glob("checkpoint-*"))


def test_pairs_longer_than_max_length_are_counted_out_and_noted(tmp_path: Path) -> None:
    rows = colour_rows(96)
    for row in rows[:5]:
        row["rejected"] = [{"role": "assistant", "content": "no " * 300}]
    context = _context(tmp_path, rows=rows)
    values = _values(train_reward_model.run(context))
    info = TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())
    assert (info.num_examples, info.examples_left_out, values["train_pairs_left_out"]) == (91, 5, 5)
    assert "5 of 96 training pairs are left out: longer than 256 tokens" in (context.work / "events.jsonl").read_text()


def test_nothing_that_fits_is_an_error_before_a_model_is_loaded(tmp_path: Path) -> None:
    context = _context(tmp_path, max_length=8)
    (tmp_path / "start" / "model.safetensors").unlink()
    with pytest.raises(BadDataError, match="Not one of 96 training pairs fits in max_length 8"):
        train_reward_model.run(context)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (TrainingSchedule(max_steps=10, eval_steps=200), "eval_steps 200 would never evaluate"),
        (TrainingSchedule(max_steps=10, eval_steps=5, save_steps=400), "save_steps 400 would never save"),
    ],
)
def test_a_schedule_that_never_evaluates_or_saves_is_refused_before_the_model_is_loaded(
    tmp_path: Path, schedule: TrainingSchedule, message: str
) -> None:
    context = _context(tmp_path, schedule=schedule)
    (tmp_path / "start" / "model.safetensors").unlink()
    with pytest.raises(BadConfigError, match=message):
        train_reward_model.run(context)


def test_a_saved_copy_that_scores_otherwise_fails_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever loses the trained head on the way to disk, the reload must notice."""

    def save_with_another_head(model: Any, tokenizer: Any, folder: Path) -> Any:
        merged: Any = save_merged(model, tokenizer, folder)
        merged.score.weight.data.neg_()
        merged.save_pretrained(folder)
        return merged

    monkeypatch.setattr("containers.stages.train_reward_model.save_merged", save_with_another_head)
    with pytest.raises(StageError, match=r"merged/, loaded from disk, scores up to .* away from the trained model"):
        train_reward_model.run(_context(tmp_path))


@pytest.mark.parametrize("use_margin", [False, True])
def test_the_margin_column_counts_only_where_it_is_asked_for(tmp_path: Path, use_margin: bool) -> None:
    losses = []
    for margin in (1.0, 3.0):
        rows = [{**row, "margin": margin} for row in colour_rows(96)]
        context = _context(
            tmp_path / f"{margin:g}", rows=rows, use_margin=use_margin, schedule=TrainingSchedule(max_steps=1)
        )
        losses.append(_values(train_reward_model.run(context))["train_loss"])
    # From the same weights; near a margin of zero, 2 more of it cost about 1.7 nats.
    assert (losses[1] - losses[0] > 1.0) is use_margin
    assert use_margin or losses[0] == losses[1]


def test_a_whole_model_is_trained_without_lora_and_reloads(tmp_path: Path) -> None:
    context = _context(
        tmp_path, lora=None, gradient_checkpointing=True, optimizer=OptimizerSettings(learning_rate=1e-3)
    )
    values = _values(train_reward_model.run(context))
    assert values["trainable_parameters"] == values["total_parameters"]
    assert values["reload_max_difference"] <= 1e-4
    assert not (context.output / "adapter").exists()


class _Crash(BaseException):
    """Stands in for the end of a process: nothing catches it."""


def _crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Make the next training die when it logs this step."""
    from containers.stages.recorder_callback import RecorderCallback

    log = RecorderCallback.on_log

    def on_log(self: Any, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == step:
            raise _Crash
        log(self, args, state, control, **rest)

    monkeypatch.setattr(RecorderCallback, "on_log", on_log)


def test_a_stage_killed_after_its_last_checkpoint_is_finished_without_another_step(
    tmp_path: Path, trained: tuple[StageContext, dict[str, float]]
) -> None:
    context = _context(tmp_path)
    train_reward_model.run(context)
    shutil.rmtree(context.output)
    context.output.mkdir()
    train_reward_model.run(context)
    info = TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())
    assert (info.resumed_from_step, info.num_steps) == (24, 24)
    assert _weights_sha256(context) == _weights_sha256(trained[0])


@pytest.mark.parametrize("damage", [None, "adapter_model.safetensors", "rng_state.pth"])
def test_a_resumed_training_ends_with_the_same_weights_bit_for_bit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str | None,
    trained: tuple[StageContext, dict[str, float]],
) -> None:
    context = _context(tmp_path)
    with monkeypatch.context() as patch:
        _crash_at(patch, 15)
        with pytest.raises(_Crash):
            train_reward_model.run(context)
    assert (context.checkpoints / "checkpoint-12").is_dir()
    if damage:
        (context.checkpoints / "checkpoint-12" / damage).write_bytes(b"")
    train_reward_model.run(context)
    info = TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())
    assert info.resumed_from_step == (8 if damage else 12)
    assert _weights_sha256(context) == _weights_sha256(trained[0])
    steps = [json.loads(line)["step"] for line in (context.output / "curves.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == list(range(1, 25))
    assert len(steps) == 24 + 6


def _start(spec: StageSpec, tmp_path: Path, log: Path) -> subprocess.Popen[bytes]:
    spec_file = tmp_path / f"{spec.run_id or 'spec'}.json"
    spec_file.write_text(spec.model_dump_json())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with open(log, "wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "containers.stages.entry", str(spec_file)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _spec(tmp_path: Path, name: str, **changes: Any) -> StageSpec:
    context = _context(tmp_path)
    inputs = {"pairs": context.input_path("pairs"), "start_model": context.input_path("start_model")}
    schedule = TrainingSchedule(max_steps=60, eval_steps=4)
    (tmp_path / name).mkdir()
    return make_spec(
        tmp_path / name, StageName.TRAIN_REWARD_MODEL, _config(schedule=schedule), inputs, run_id=name, **changes
    )


def _merged_sha256(spec: StageSpec) -> str:
    path = Path(spec.work_path) / "output" / "merged" / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_killed_stage_goes_on_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole, killed = _spec(tmp_path, "whole"), _spec(tmp_path, "killed")
    assert _start(whole, tmp_path, tmp_path / "whole.log").wait(timeout=300) == 0
    process = _start(killed, tmp_path, tmp_path / "killed.log")
    deadline = time.monotonic() + 200
    while not list((tmp_path / "killed" / "checkpoints").glob("checkpoint-1*/checkpoint_manifest.json")):
        assert process.poll() is None, (tmp_path / "killed.log").read_text()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "outcome.json").exists()
    assert _start(killed, tmp_path, tmp_path / "again.log").wait(timeout=300) == 0
    info = json.loads((tmp_path / "killed" / "output" / "training_info.json").read_text())
    assert info["resumed_from_step"] >= 10
    assert _merged_sha256(killed) == _merged_sha256(whole)


@pytest.mark.slow
def test_two_ranks_train_together_and_rank_zero_alone_writes(tmp_path: Path) -> None:
    plan = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)
    spec = _spec(tmp_path, "ranks", batch=plan)
    code = _start(spec, tmp_path, tmp_path / "ranks.log").wait(timeout=400)
    assert code == 0, (tmp_path / "ranks.log").read_text()[-3000:]
    outcome = json.loads((tmp_path / "ranks" / "outcome.json").read_text())
    values = {metric["name"]: metric["value"] for metric in outcome["metrics"]}
    assert values["validation_accuracy"] >= 0.95
    assert values["reload_max_difference"] <= 1e-4
    curves = [json.loads(line) for line in (tmp_path / "ranks" / "output" / "curves.jsonl").read_text().splitlines()]
    assert [point["step"] for point in curves if "loss" in point["values"]] == list(range(1, 61))
    manifests = list((tmp_path / "ranks" / "checkpoints").glob("checkpoint-*/checkpoint_manifest.json"))
    assert all("rng_state_1.pth" in manifest.read_text() for manifest in manifests) and manifests
