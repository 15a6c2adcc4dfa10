"""These figures open or close the gate: counted per pair, on the saved model, with nothing left out in silence."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from containers.contracts.certificate import Certificate
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig, SuiteFile
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.funnel import Funnel, ValidationPart
from containers.contracts.names import FUNNEL_FILE, StageName
from containers.contracts.outcome import Metric
from containers.contracts.registries import BENCHMARKS
from containers.evals.scored_suite import ScoredSuite
from containers.evals.suite_evaluation import evaluate_suite
from containers.evals.suites.base import Comparison, Intervals, ScoredItem, SuiteItem, SuiteRows
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError, StageError
from containers.scoring.scorer import score_head_sha256
from containers.stages import evaluate_reward_model, train_reward_model
from tests.unit.factories.spec_factory import colour_rows, flipped, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained reward_model artifact; tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("reward_model")
    config = TrainRewardModelConfig(
        max_length=256,
        lora=LoraSettings(r=4, alpha=8),
        gradient_checkpointing=False,
        optimizer=OptimizerSettings(learning_rate=3e-3),
        schedule=TrainingSchedule(max_steps=16, eval_steps=8),
    )
    inputs = {
        "pairs": write_pairs(folder / "pairs", colour_rows(96)),
        "start_model": save_causal_model(folder / "start", scale=0.02),
    }
    context = make_context(folder, StageName.TRAIN_REWARD_MODEL, config, inputs)
    train_reward_model.run(context)
    return context.output


def _context(
    tmp_path: Path,
    reward_model: Path,
    *,
    files: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    validation: Sequence[Mapping[str, Any]] | None = None,
    minimum_accuracy: float | None = None,
    **changes: Any,
) -> StageContext:
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(1), validation), "reward_model": reward_model}
    for name, rows in (files or {}).items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        inputs[f"suite_{name}"] = path
    suites = tuple(SuiteFile(name=name, path=name, minimum_accuracy=minimum_accuracy) for name in files or {})
    fields: dict[str, Any] = {"max_length": 256, "num_bootstrap": 200, "suites": suites, **changes}
    return make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, EvaluateRewardModelConfig(**fields), inputs)


def _run(context: StageContext) -> tuple[Certificate, dict[str, Metric]]:
    metrics = evaluate_reward_model.run(context)
    text = (context.output / "certificate.json").read_bytes()
    return Certificate.model_validate_json(text), {metric.name: metric for metric in metrics}


def test_all_figures_plots_and_scores_are_written(tmp_path: Path, reward_model: Path) -> None:
    context = _context(tmp_path, reward_model, files={"known": colour_rows(30, seed=5)}, minimum_accuracy=0.8)
    evaluation, metrics = _run(context)
    own, known = evaluation.suites
    assert (own.name, own.num_pairs, known.name, known.num_pairs) == ("test", 24, "known", 30)
    assert metrics["accuracy/known"].value >= 0.9
    assert metrics["accuracy/known"].count == 30
    error, chance = metrics["expected_calibration_error/known"], known.calibration_by_chance
    assert error.ci_low is not None and error.ci_high is not None and chance is not None
    assert error.ci_low <= error.value <= error.ci_high
    assert metrics["plug_in_calibration_error/known"].value == chance.plug_in
    assert metrics["perfect_high_calibration_error/known"].value == chance.perfect_high > chance.perfect_mean > 0
    assert known.minimum_accuracy == 0.8
    assert evaluation.parity.max_difference <= 1e-4
    assert evaluation.model.score_head_sha256 == score_head_sha256(reward_model / "merged")
    assert [metric.name for metric in own.subsets] == ["general", "stem"]
    assert [metric.name for metric in own.by_strength] == ["1", "2", "3"]
    assert sum(metric.count or 0 for metric in own.length.by_length_difference) == 24
    table = pq.read_table(context.output / "scores_known.parquet").to_pylist()
    right = sum(row["score_chosen"] > row["score_rejected"] for row in table)
    assert right / 30 == metrics["accuracy/known"].value
    plots = {path.name for path in (context.output / "plots").iterdir()}
    assert plots == {
        f"{what}_{name}.png" for what in ("margins", "calibration", "accuracy") for name in ("test", "known")
    }


def test_a_checkpoint_chosen_on_the_pairs_that_certify_is_said_with_its_cost(
    tmp_path: Path, reward_model: Path
) -> None:
    mixed = [*colour_rows(80, seed=1), *flipped(colour_rows(40, seed=2))]
    context = _context(tmp_path, reward_model, validation=mixed)
    choice = _run(context)[0].choice
    assert choice is not None
    assert (choice.num_pairs, choice.num_checkpoints) == (120, 2)
    # 120 pairs with an accuracy of 2/3 have a standard error of 4.3 points; the better of two is 0.59 of that higher.
    assert choice.optimism == pytest.approx(0.043 * 0.59 * math.sqrt(0.1), abs=0.003)
    page = (context.output / "certificate.html").read_text()
    assert "because too few prompts are held out" in page
    assert "may be about 0.8 points too high (0.6 to 1.4)" in page


def test_a_configuration_without_tune_pairs_is_named_as_the_reason(tmp_path: Path, reward_model: Path) -> None:
    """Holding out more prompts would change nothing."""
    mixed = [*colour_rows(80, seed=1), *flipped(colour_rows(40, seed=2))]
    context = _context(tmp_path, reward_model, validation=mixed)
    parts = [
        ValidationPart(name=name, num_pairs=120, num_prompts=120, is_test=True, share=share)
        for name, share in (("tune", 0.0), ("test", 1.0))
    ]
    funnel = Funnel(sources=(), rows_read=240, steps=(), validation_parts=tuple(parts))
    (context.input_path("pairs") / FUNNEL_FILE).write_text(funnel.model_dump_json())
    choice = _run(context)[0].choice
    assert choice is not None and choice.by_setting
    page = (context.output / "certificate.html").read_text()
    assert "because filter_dataset.validation_parts.tune is 0" in page and "too few prompts" not in page


def test_where_other_pairs_chose_the_checkpoint_nothing_is_said(tmp_path: Path, reward_model: Path) -> None:
    context = _context(tmp_path, reward_model)
    pairs = context.input_path("pairs")
    shutil.copy(write_pairs(tmp_path / "other", colour_rows(1), colour_rows(9, seed=4)) / "tune.parquet", pairs)
    assert _run(context)[0].choice is None
    assert "too high" not in (context.output / "certificate.html").read_text()


def test_flipped_fixture_pairs_show_as_low_accuracy(tmp_path: Path, reward_model: Path) -> None:
    _, metrics = _run(_context(tmp_path, reward_model, files={"fixture": flipped(colour_rows(30, seed=5))}))
    assert metrics["accuracy/fixture"].value <= 0.1


def test_samples_run_from_the_most_wrong_to_the_most_right_pair(tmp_path: Path, reward_model: Path) -> None:
    mixed = [*colour_rows(12, seed=1), *flipped(colour_rows(12, seed=2))]
    evaluation, _ = _run(_context(tmp_path, reward_model, validation=mixed, num_samples=5))
    margins = [sample.score_chosen - sample.score_rejected for sample in evaluation.samples]
    assert len(margins) == 5
    assert margins == sorted(margins)
    assert margins[0] < 0 < margins[-1]


def test_rows_that_are_malformed_or_too_long_are_counted(tmp_path: Path, reward_model: Path) -> None:
    rows = colour_rows(10, seed=5)
    rows[0]["chosen"] = [{"role": "assistant", "content": "long " * 200}]
    rows[1]["rejected"] = rows[1]["chosen"]
    evaluation, _ = _run(_context(tmp_path, reward_model, files={"some": rows}))
    assert (evaluation.suites[1].num_pairs, evaluation.suites[1].num_left_out) == (8, 2)


def test_a_file_of_which_nothing_is_left_has_no_accuracy(tmp_path: Path, reward_model: Path) -> None:
    rows = colour_rows(3, seed=5)
    for row in rows:
        row["chosen"] = [{"role": "assistant", "content": "long " * 200}]
    evaluation, metrics = _run(_context(tmp_path, reward_model, files={"long": rows}, minimum_accuracy=0.5))
    assert evaluation.suites[1].accuracy is None
    assert (evaluation.suites[1].num_left_out, evaluation.suites[1].minimum_accuracy) == (3, 0.5)
    assert "accuracy/long" not in metrics


def test_test_pairs_of_which_nothing_is_left_is_an_error(tmp_path: Path, reward_model: Path) -> None:
    rows = colour_rows(3, seed=5)
    for row in rows:
        row["chosen"] = [{"role": "assistant", "content": "long " * 200}]
    with pytest.raises(BadDataError, match="Not one test pair fits in max_length 256"):
        _run(_context(tmp_path, reward_model, validation=rows))


def test_a_model_that_does_not_give_the_logged_scores_is_refused(tmp_path: Path, reward_model: Path) -> None:
    changed = _changed_weight(reward_model, tmp_path / "changed", "model.norm.weight")
    with pytest.raises(StageError, match=r"away from what training logged for the same 48 conversations") as refused:
        _run(_context(tmp_path, changed))
    assert "evaluator, batches of 1" in str(refused.value)


def test_an_adapter_with_another_head_than_the_merged_model_is_refused(tmp_path: Path, reward_model: Path) -> None:
    changed = _changed_weight(reward_model, tmp_path / "changed", "score.weight")
    with pytest.raises(MissingPrerequisiteError, match=r"score heads of .*adapter and of the merged model .* differ"):
        _run(_context(tmp_path, changed))


def _changed_weight(reward_model: Path, target: Path, name: str) -> Path:
    changed = _copy(reward_model, target)
    weights = load_file(changed / "merged" / "model.safetensors")
    weights[name] = weights[name] * 1.01
    save_file(weights, changed / "merged" / "model.safetensors", metadata={"format": "pt"})
    return changed


def test_a_model_without_its_head_is_refused(tmp_path: Path, reward_model: Path) -> None:
    changed = _copy(reward_model, tmp_path / "changed")
    weights = load_file(changed / "merged" / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, changed / "merged" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MissingPrerequisiteError, match=r"score\.weight is not in its files"):
        _run(_context(tmp_path, changed))


@pytest.mark.parametrize("content", ["[]", "[{]", None])
def test_without_logged_predictions_nothing_can_be_compared(
    tmp_path: Path, reward_model: Path, content: str | None
) -> None:
    changed = _copy(reward_model, tmp_path / "changed")
    path = changed / "sample_predictions.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(MissingPrerequisiteError, match=r"sample_predictions\.json"):
        _run(_context(tmp_path, changed))


def test_a_max_length_below_every_logged_conversation_is_a_mistake_of_the_config(
    tmp_path: Path, reward_model: Path
) -> None:
    with pytest.raises(BadConfigError, match=r"max_length 8 is shorter than every conversation"):
        _run(_context(tmp_path, reward_model, max_length=8))


def test_a_suite_may_not_take_the_name_of_the_test_pairs(tmp_path: Path, reward_model: Path) -> None:
    with pytest.raises(BadConfigError, match="the name 'test' is taken"):
        _run(_context(tmp_path, reward_model, files={"test": colour_rows(3)}))


def test_ties_count_half_and_are_named() -> None:
    scores = ((1.0, 0.0), (0.5, 0.5), (0.0, 1.0), (2.0, 1.0))
    items = [ScoredItem(_item(str(place)), both) for place, both in enumerate(scores)]
    rows = SuiteRows(items=tuple(scored.item for scored in items), rows_read=4)
    suite = ScoredSuite(name="f", benchmark=BENCHMARKS["pairs"], rows=rows).with_scores(items, num_over_long=0)
    evaluation = evaluate_suite(suite, Intervals(confidence=0.95, num_bootstrap=100, seed=0))
    assert evaluation.accuracy is not None
    assert (evaluation.accuracy.value, evaluation.num_ties) == (0.625, 1)


def _item(item_id: str) -> SuiteItem:
    prompt = ({"role": "user", "content": "q"},)
    return SuiteItem(item_id, prompt, ("a", "b"), "d", (Comparison(0, 1),))


def _copy(artifact: Path, target: Path) -> Path:
    for path in artifact.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(artifact)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return target


def test_bfloat16_training_widens_the_allowed_difference(tmp_path: Path, reward_model: Path) -> None:
    """Weights rounded to bfloat16 score a little off; that is no other model, where training says that it used it."""
    changed = _copy(reward_model, tmp_path / "changed")
    weights = load_file(changed / "merged" / "model.safetensors")
    rounded = {name: tensor.to(torch.bfloat16).float() for name, tensor in weights.items()}
    save_file(rounded, changed / "merged" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StageError, match="away from what training logged"):
        _run(_context(tmp_path / "a", changed))
    info = json.loads((changed / "training_info.json").read_text())
    (changed / "training_info.json").write_text(json.dumps({**info, "precision": "bf16"}))
    evaluation, _ = _run(_context(tmp_path / "b", changed))
    assert 1e-4 < evaluation.parity.max_difference < 0.05
