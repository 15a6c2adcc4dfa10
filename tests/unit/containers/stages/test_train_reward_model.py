"""The reward model decides what the policy becomes: what is saved must be what was trained, on the right labels."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from containers.contracts.configs.parts.training import OptimizerSettings, TrainingSchedule
from containers.evals.sample_predictions import both_conversations, read_sample_predictions
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, DivergedError, StageError
from containers.models.loading import save_merged
from containers.scoring.scorer import RewardScorer
from containers.stages import train_reward_model
from tests.unit.factories.reward_model_factory import reward_model_context, training_info_of, values_of
from tests.unit.factories.spec_factory import colour_rows, flipped, write_pairs

pytestmark = pytest.mark.stages


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[StageContext, dict[str, float]]:
    context = reward_model_context(tmp_path_factory.mktemp("trained"))
    return context, values_of(train_reward_model.run(context))


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
    info = training_info_of(context)
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
    context = reward_model_context(tmp_path)
    write_pairs(tmp_path / "pairs", colour_rows(96), flipped(colour_rows(24, seed=99)))
    train_reward_model.run(context)
    info = training_info_of(context)
    assert info.best_step == 4
    last = json.loads((context.output / "trainer_state.json").read_text())["log_history"]
    assert last[-2]["eval_loss"] > 2 * (info.best_metric or 0)
    sample = read_sample_predictions(context.output)[0]
    assert abs(sample.score_chosen - sample.score_rejected) < 0.5


def test_the_accuracy_on_the_tune_pairs_counts_prompts_not_pairs(tmp_path: Path) -> None:
    """Four pairs of a prompt are no four observations, so the interval is over six prompts, not over 24 pairs."""
    context = reward_model_context(tmp_path, schedule=TrainingSchedule(max_steps=4, eval_steps=4))
    tune = colour_rows(24, seed=99)
    tune = [{**row, "prompt": tune[4 * (place // 4)]["prompt"]} for place, row in enumerate(tune)]
    write_pairs(tmp_path / "pairs", colour_rows(96), tune)
    accuracy = next(item for item in train_reward_model.run(context) if item.name == "validation_accuracy")
    assert (accuracy.count, accuracy.num_prompts) == (24, 6)


def test_flipped_labels_teach_the_opposite_and_fixture_rows_show_it(tmp_path: Path) -> None:
    """The training loss falls just the same; only pairs whose order is known tell a wrong sign."""
    context = reward_model_context(tmp_path, rows=flipped(colour_rows(96)))
    write_pairs(tmp_path / "pairs", flipped(colour_rows(96)), flipped(colour_rows(24, seed=99)))
    assert values_of(train_reward_model.run(context))["validation_accuracy"] > 0.9
    scorer = RewardScorer.load(
        context.output / "merged", device="cpu", dtype=torch.float32, max_length=256, batch_size=8
    )
    fixture = colour_rows(30, seed=5)
    scores = scorer.score([row["prompt"] + row[side] for row in fixture for side in ("chosen", "rejected")])
    right = sum(chosen > rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True))
    assert right / len(fixture) < 0.5


def test_a_learning_rate_of_1e12_is_a_divergence_with_its_step_and_no_model(tmp_path: Path) -> None:
    context = reward_model_context(
        tmp_path, optimizer=OptimizerSettings(learning_rate=1e12, weight_decay=1e12, warmup_fraction=0)
    )
    with pytest.raises(DivergedError, match=r"is (nan|inf) at step \d+ of 24.*learning_rate \(1e\+12\)"):
        train_reward_model.run(context)
    assert not (context.output / "merged").exists()
    assert not list(context.checkpoints.glob("checkpoint-*"))


def test_pairs_longer_than_max_length_are_counted_out_and_noted(tmp_path: Path) -> None:
    rows = colour_rows(96)
    for row in rows[:5]:
        row["rejected"] = [{"role": "assistant", "content": "no " * 300}]
    context = reward_model_context(tmp_path, rows=rows)
    values = values_of(train_reward_model.run(context))
    info = training_info_of(context)
    assert (info.num_examples, info.examples_left_out, values["train_pairs_left_out"]) == (91, 5, 5)
    assert "5 of 96 training pairs are left out: longer than 256 tokens" in (context.work / "events.jsonl").read_text()


def test_nothing_that_fits_is_an_error_before_a_model_is_loaded(tmp_path: Path) -> None:
    context = reward_model_context(tmp_path, max_length=8)
    (tmp_path / "start" / "model.safetensors").unlink()
    with pytest.raises(BadDataError, match=r"Not one of 96 training pairs fits in train_reward_model\.max_length 8"):
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
    context = reward_model_context(tmp_path, schedule=schedule)
    (tmp_path / "start" / "model.safetensors").unlink()
    with pytest.raises(BadConfigError, match=message):
        train_reward_model.run(context)


def test_a_saved_copy_that_scores_otherwise_fails_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever loses the trained head on the way to disk, the reload must notice, also after the trial at the start."""

    def save_with_another_head(model: Any, tokenizer: Any, folder: Path) -> Any:
        merged: Any = save_merged(model, tokenizer, folder)
        merged.score.weight.data.neg_()
        merged.save_pretrained(folder)
        return merged

    monkeypatch.setattr(train_reward_model.RewardModelTraining, "try_copies", lambda self: None)
    monkeypatch.setattr("containers.scoring.reload.save_merged", save_with_another_head)
    with pytest.raises(StageError, match=r"merged/, loaded from disk, gives scores up to .* away from the trained"):
        train_reward_model.run(reward_model_context(tmp_path))


@pytest.mark.parametrize("use_margin", [False, True])
def test_the_margin_column_counts_only_where_it_is_asked_for(tmp_path: Path, use_margin: bool) -> None:
    losses = []
    for margin in (1.0, 3.0):
        rows = [{**row, "margin": margin} for row in colour_rows(96)]
        context = reward_model_context(
            tmp_path / f"{margin:g}", rows=rows, use_margin=use_margin, schedule=TrainingSchedule(max_steps=1)
        )
        losses.append(values_of(train_reward_model.run(context))["train_loss"])
    # From the same weights; near a margin of zero, 2 more of it cost about 1.7 nats.
    assert (losses[1] - losses[0] > 1.0) is use_margin
    assert use_margin or losses[0] == losses[1]


def test_a_whole_model_is_trained_without_lora_and_reloads(tmp_path: Path) -> None:
    context = reward_model_context(
        tmp_path, lora=None, gradient_checkpointing=True, optimizer=OptimizerSettings(learning_rate=1e-3)
    )
    values = values_of(train_reward_model.run(context))
    assert values["trainable_parameters"] == values["total_parameters"]
    assert values["reload_max_difference"] <= 1e-4
    assert not (context.output / "adapter").exists()
