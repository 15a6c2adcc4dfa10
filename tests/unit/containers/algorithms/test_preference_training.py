"""A policy learns from pairs alone which completions people chose; resumed or padded, it is the same training."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from containers.algorithms.offline_step import Example
from containers.algorithms.pair_examples import with_mismatched
from containers.algorithms.preference_training import PreferenceTraining
from containers.algorithms.reference_logps import allowed_gap, start_text
from containers.contracts.configs.compute_reference import ComputeReferenceConfig
from containers.contracts.configs.parts.preference_losses import PREFERENCE_LOSSES, contradictions
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.names import REFERENCE_FILE, StageName
from containers.contracts.records import TrainingInfo
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError, StageError
from containers.packing.logps import row_logps
from containers.stages import compute_reference
from containers.training.callbacks import RecorderCallback
from containers.training.program import run_training
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import CHATML, save_causal_model

pytestmark = pytest.mark.stages


class _Crash(BaseException):
    """Ends a training as the end of its process would: nothing catches it."""


def context_of(folder: Path, *, rows: list[dict[str, Any]] | None = None, **changes: Any) -> StageContext:
    inputs = {
        "pairs": write_pairs(folder / "pairs", colour_rows(32) if rows is None else rows),
        "start_model": save_causal_model(folder / "start", scale=0.02),
    }
    fields: dict[str, Any] = {
        "max_length": 256,
        "lora": LoraSettings(r=4, alpha=8),
        "gradient_checkpointing": False,
        "optimizer": OptimizerSettings(learning_rate=1e-2),
        "schedule": TrainingSchedule(max_steps=8, eval_steps=4),
        **changes,
    }
    config = TrainDpoConfig(**fields)
    if config.method.has_reference:
        inputs["reference"] = reference_of(folder, config, inputs)
    return make_context(folder, StageName.TRAIN_DPO, config, inputs)


def reference_of(folder: Path, config: TrainDpoConfig, inputs: dict[str, Path]) -> Path:
    """The artifact of compute_reference for a training with that configuration."""
    settings = ComputeReferenceConfig().for_training(config)
    context = make_context(folder / "of reference", StageName.COMPUTE_REFERENCE, settings, inputs)
    compute_reference.run(context)
    return context.output


def run(context: StageContext) -> dict[str, float]:
    return {metric.name: metric.value for metric in run_training(context, PreferenceTraining(context))}


def points_of(context: StageContext) -> list[dict[str, float]]:
    lines = (context.output / "curves.jsonl").read_text().splitlines()
    points: list[dict[str, float]] = [json.loads(line)["values"] for line in lines]
    return points


def curve_of(context: StageContext, name: str) -> list[float]:
    return [point[name] for point in points_of(context) if name in point]


def weights_of(context: StageContext) -> dict[str, torch.Tensor]:
    return dict(load_file(context.output / "model" / "model.safetensors"))


def test_a_few_steps_of_dpo_prefer_what_people_chose(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    metrics = run(context)
    losses, accuracies = curve_of(context, "loss"), curve_of(context, "accuracy")
    assert abs(losses[0] - math.log(2)) < 1e-6
    assert accuracies[0] < 0.9
    assert accuracies[-1] == metrics["validation_accuracy"] == 1.0
    assert losses[-1] < 0.5
    assert curve_of(context, "eval_margin")[-1] > 0.5
    names = ("chosen_logps", "rejected_logps", "chosen_log_ratio", "rejected_log_ratio", "kl_on_pairs", "entropy")
    assert all(len(curve_of(context, name)) == 8 for name in names)
    assert (context.output / "adapter" / "adapter_model.safetensors").is_file()
    info = TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())
    assert (info.num_examples, info.best_step, info.best_metric_name) == (32, 8, "eval_loss")
    assert metrics["validation_loss"] == min(curve_of(context, "eval_loss"))


@pytest.mark.parametrize("loss", ["robust", "hinge", "ipo", "simpo", "kto", "orpo", "sft"])
def test_each_loss_learns_to_tell_the_completions_apart(tmp_path: Path, loss: str) -> None:
    context = context_of(tmp_path, loss=loss)
    metrics = run(context)
    assert metrics["validation_accuracy"] == 1.0
    evaluated = curve_of(context, "eval_loss")
    assert evaluated[-1] < evaluated[0]
    assert bool(curve_of(context, "chosen_log_ratio")) is PREFERENCE_LOSSES[loss].has_reference


def test_packs_of_any_size_and_padded_rows_train_the_same_policy_and_the_log_says_what_was_packed(
    tmp_path: Path,
) -> None:
    """A pair is longer than 40 tokens, and is then a pack of its own."""
    ways: dict[str, dict[str, Any]] = {"packed": {}, "small": {"pack_tokens": 40}, "padded": {"pack": False}}
    contexts = {name: context_of(tmp_path / name, sft_weight=0.5, **way) for name, way in ways.items()}
    for context in contexts.values():
        run(context)
    for name in ("loss", "margin", "eval_loss", "entropy", "num_tokens"):
        expected = curve_of(contexts["packed"], name)
        for way in ("small", "padded"):
            assert curve_of(contexts[way], name) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    notes = {name: (context.work / "events.jsonl").read_text() for name, context in contexts.items()}
    assert "Pairs are packed, 2,048 tokens at a time" in notes["packed"]
    assert "Pairs are packed, 40 tokens at a time" in notes["small"]
    assert "Pairs are packed" not in notes["padded"]


@pytest.mark.parametrize("lora", [None, LoraSettings(r=4, alpha=8)], ids=["whole model", "adapters"])
def test_a_resumed_training_is_the_same_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: LoraSettings | None
) -> None:
    """In its second epoch, too: 8 steps are two epochs of 32 pairs."""
    whole, broken = (context_of(tmp_path / name, lora=lora) for name in ("whole", "broken"))
    run(whole)
    log = RecorderCallback.on_log

    def on_log(self: Any, args: Any, state: Any, control: Any, **rest: Any) -> None:
        log(self, args, state, control, **rest)
        if state.global_step == 6:
            raise _Crash

    with monkeypatch.context() as patch:
        patch.setattr(RecorderCallback, "on_log", on_log)
        with pytest.raises(_Crash):
            run(broken)
    run(broken)
    assert curve_of(broken, "loss") == curve_of(whole, "loss")
    assert curve_of(broken, "margin") == curve_of(whole, "margin")
    expected, found = weights_of(whole), weights_of(broken)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_reference_of_other_pairs_or_of_another_model_is_refused(tmp_path: Path) -> None:
    context, other = context_of(tmp_path / "own"), context_of(tmp_path / "other", rows=colour_rows(32, seed=4))
    path = context.input_path("reference") / REFERENCE_FILE
    path.write_bytes((other.input_path("reference") / REFERENCE_FILE).read_bytes())
    with pytest.raises(MissingPrerequisiteError, match="has the log-probabilities of other pairs or tokens, or of"):
        run(context)
    path.write_bytes(b"no safetensors")
    with pytest.raises(MissingPrerequisiteError, match="cannot be read"):
        run(context)


@pytest.mark.parametrize("lora", [None, LoraSettings(r=4, alpha=8)], ids=["whole model", "adapters"])
def test_before_the_first_step_policy_and_reference_are_compared_and_the_log_says_how_far_apart_they_are(
    tmp_path: Path, lora: LoraSettings | None
) -> None:
    context = context_of(tmp_path, lora=lora)
    run(context)
    notes = (context.work / "events.jsonl").read_text()
    (said,) = re.findall(r"of 32 completions are at most (\S+) nats from the reference's; .* up to (\S+)\.", notes)
    assert 0 <= float(said[0]) < float(said[1]) < 1e-3
    assert "Warning: Before the first step" not in notes


@pytest.mark.parametrize(("gap", "expected"), [(0.5, ""), (2.0, "Warning: "), (20.0, None)])
def test_a_policy_far_from_its_reference_is_a_warning_and_at_last_an_error(gap: float, expected: str | None) -> None:
    example = Example([1], ([2] * 16, [3] * 16), reference=(-32.0, -40.0))
    allowed = allowed_gap(-32.0, num_tokens=16, dtype=torch.bfloat16, num_layers=8)
    assert allowed == pytest.approx(2 * 4 * 4 * 2**-8 * 4)
    own = [(-32.0 - gap * allowed, -40.0)]
    if expected is None:
        with pytest.raises(StageError, match=r"The reference is of another model, .* Run compute_reference again"):
            start_text([example], own, dtype=torch.bfloat16, num_layers=8)
    else:
        assert start_text([example], own, dtype=torch.bfloat16, num_layers=8).startswith(f"{expected}Before the first")


def test_runs_that_differ_in_all_but_pairs_and_start_share_their_reference(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"loss": "ipo", "beta": 0.5, "sft_weight": 0.3},
        {
            "lora": LoraSettings(r=8, alpha=4),
            "global_batch_size": 4,
            "optimizer": OptimizerSettings(learning_rate=1e-5),
        },
    ]
    made = [ComputeReferenceConfig().for_training(TrainDpoConfig(**change)) for change in changes]
    assert made[0] == made[1] == made[2]
    others: list[dict[str, Any]] = [{"loss": "kto"}, {"lora": None}, {"max_length": 64}, {"chat_template": CHATML}]
    for change in others:
        assert ComputeReferenceConfig().for_training(TrainDpoConfig(**change)) != made[0]


def test_the_reference_is_what_plain_transformers_finds(tmp_path: Path) -> None:
    context = context_of(tmp_path, loss="kto")
    training = PreferenceTraining(context)
    training.prepare()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "start").eval()
    arrays = load_numpy(context.input_path("reference") / REFERENCE_FILE)
    for split, rows in (("0", training.examples.train.kept), ("1", training.examples.validation.kept)):
        examples = training.examples_of(rows)
        assert len(arrays[split]) == len(examples)
        for example, values in list(zip(examples, arrays[split], strict=True))[::7]:
            completions = (*example.completions, *example.mismatched)
            with torch.no_grad():
                own = [float(row_logps(model, example.prompt, ids).sum()) for ids in completions]
            assert values.tolist() == pytest.approx(own, rel=1e-5)


def test_a_pair_of_which_one_side_is_too_long_is_left_out_and_none_is_cut(tmp_path: Path) -> None:
    rows = colour_rows(32)
    rows[0]["chosen"] = [{"role": "assistant", "content": "yes " * 200}]
    rows[1]["rejected"] = [{"role": "assistant", "content": "no " * 200}]
    context = context_of(tmp_path, rows=rows)
    assert run(context)["train_pairs_left_out"] == 2
    assert "2 of 32 training pairs are left out" in (context.work / "events.jsonl").read_text()


def test_a_pair_with_equal_completions_is_no_success_and_moves_nothing(tmp_path: Path) -> None:
    rows = [{**row, "rejected": row["chosen"]} for row in colour_rows(32)]
    context = context_of(tmp_path, rows=rows)
    run(context)
    assert set(curve_of(context, "accuracy")) == {0.0}
    assert curve_of(context, "grad_norm") == pytest.approx([0.0] * 8, abs=1e-6)


def test_all_contradictions_are_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    context = context_of(tmp_path, loss="orpo", label_smoothing=0.6, sft_weight=0.0, length_normalised=False)
    (tmp_path / "start" / "model.safetensors").unlink()
    with pytest.raises(BadConfigError) as caught:
        run(context)
    lines = str(caught.value).splitlines()
    keys = ["label_smoothing", "label_smoothing", "length_normalised", "sft_weight"]
    assert [line.partition(":")[0] for line in lines] == [f"train_dpo.{key}" for key in keys]


@pytest.mark.parametrize("name", PREFERENCE_LOSSES)
def test_no_loss_contradicts_itself(name: str) -> None:
    assert list(contradictions(PREFERENCE_LOSSES[name])) == []


@pytest.mark.parametrize(
    ("loss", "changes", "key"),
    [
        ("ipo", {"label_smoothing": 0.1}, "label_smoothing"),
        ("sigmoid", {"label_smoothing": 0.5}, "label_smoothing"),
        ("robust", {"label_smoothing": 0.0}, "label_smoothing"),
        ("hinge", {"simpo_gamma": 1.0}, "simpo_gamma"),
        ("kto", {"length_normalised": True}, "length_normalised"),
    ],
)
def test_parts_that_have_no_effect_or_no_sense_are_refused(loss: str, changes: dict[str, Any], key: str) -> None:
    found = list(contradictions(TrainDpoConfig(loss=loss, **changes).method))
    assert [one for one, _ in found] == [key]


def test_ktos_mismatched_completions_answer_another_prompt_and_fit() -> None:
    examples = [
        Example([1, 2], ([3], [4])),
        Example([1, 2], ([5], [6])),
        Example([7, 7, 7], ([8, 8, 8, 8], [9])),
    ]
    found = [example.mismatched for example in with_mismatched(examples, max_length=5)]
    assert found == [([8, 8, 8], [9]), ([8, 8, 8], [9]), ([3], [4])]
    with pytest.raises(BadDataError, match="All pairs have the same prompt"):
        with_mismatched(examples[:2], max_length=5)


def test_policy_and_reference_hold_their_frozen_weights_alike_in_four_bits(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    context = context_of(tmp_path / "nf4", quantization="nf4")
    run(context)
    notes = (context.work / "events.jsonl").read_text()
    assert "Before the first step, the policy's log-probabilities of" in notes
    assert "Warning: Before the first step" not in notes
    assert all(weight.is_floating_point() for weight in weights_of(context).values())
