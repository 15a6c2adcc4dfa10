"""Models that look like reward models and are none: each is refused, and for the right reason."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from containers.contracts.certificate import Certificate
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig, SuiteFile
from containers.contracts.names import ADAPTER_FOLDER, StageName
from containers.harness.errors import MissingPrerequisiteError
from containers.stages import evaluate_reward_model, train_reward_model
from tasks.config.gates import RewardModelGate, judge_reward_model
from tests.unit.factories.made_reward_models import random_model, token_counter, write_reward_model
from tests.unit.factories.reward_model_factory import reward_model_config
from tests.unit.factories.spec_factory import colour_rows, flipped, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def of_inverted_labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on pairs of which the wrong side is called chosen, in training and validation alike."""
    folder = tmp_path_factory.mktemp("inverted")
    inputs = {
        "pairs": write_pairs(folder / "pairs", flipped(colour_rows(96)), flipped(colour_rows(24, seed=99))),
        "start_model": save_causal_model(folder / "start", scale=0.02),
    }
    context = make_context(folder, StageName.TRAIN_REWARD_MODEL, reward_model_config(), inputs)
    train_reward_model.run(context)
    return context.output


def _certificate(
    tmp_path: Path, model: Path, validation: Sequence[Mapping[str, Any]], labelled: Sequence[Mapping[str, Any]]
) -> Certificate:
    path = tmp_path / "labelled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in labelled))
    inputs = {
        "pairs": write_pairs(tmp_path / "pairs", colour_rows(1), validation),
        "reward_model": model,
        "suite_labelled": path,
    }
    suite = SuiteFile(name="labelled", path="labelled.jsonl", minimum_accuracy=0.8)
    config = EvaluateRewardModelConfig(max_length=512, num_bootstrap=200, suites=(suite,))
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    evaluate_reward_model.run(context)
    return Certificate.model_validate_json((context.output / "certificate.json").read_bytes())


def _missed(certificate: Certificate, **gate: float) -> set[str]:
    verdict = judge_reward_model(certificate, RewardModelGate(**{"minimum_accuracy": 0.8, **gate}))
    assert verdict.opens is all(rule.passed for rule in verdict.rules)
    return {rule.name for rule in verdict.rules if not rule.passed}


def _fact_rows(count: int, *, seed: int) -> Rows:
    """The prompt names the colour; an answer of the same form names another one."""
    draw = random.Random(seed)  # noqa: S311 - rows for a test
    rows = []
    for number in range(count):
        right, wrong = draw.sample(["red", "green", "blue", "pink", "grey", "white"], 2)
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"Wall {number} is {right}. What colour is it?"}],
                "chosen": [{"role": "assistant", "content": f"It is {right}."}],
                "rejected": [{"role": "assistant", "content": f"It is {wrong}."}],
                "margin": 1.0,
                "domain": "general",
                "language": "english",
                "pair_id": f"fact-{seed}-{number}",
            }
        )
    return rows


def _rows_of_lengths(count: int, *, seed: int) -> Rows:
    """Of nine in ten pairs the better answer is the longer one, as people's preferences have it."""
    draw = random.Random(seed)  # noqa: S311 - rows for a test
    rows = _fact_rows(count, seed=seed)
    for number, row in enumerate(rows):
        short, long = sorted(draw.sample(range(1, 9), 2))
        better, worse = (long, short) if number % 10 else (short, long)
        row["chosen"] = [{"role": "assistant", "content": "Good. " * better}]
        row["rejected"] = [{"role": "assistant", "content": "Bad!! " * worse}]
    return rows


def test_inverted_labels_pass_their_own_validation_and_miss_the_labelled_suite(
    tmp_path: Path, of_inverted_labels: Path
) -> None:
    validation = flipped(colour_rows(24, seed=99))
    found = _certificate(tmp_path, of_inverted_labels, validation, colour_rows(30, seed=5))
    by_name = {suite.name: suite.score for suite in found.suites}
    assert by_name["test"] is not None and by_name["test"].value > 0.9
    assert by_name["labelled"] is not None and by_name["labelled"].value < 0.1
    assert _missed(found) == {"accuracy on labelled"}


def test_a_random_head_is_no_better_than_chance(tmp_path: Path) -> None:
    validation = _fact_rows(80, seed=1)
    model = write_reward_model(tmp_path / "random", random_model(), validation)
    found = _certificate(tmp_path, model, validation, _fact_rows(80, seed=2))
    assert _missed(found) == {"accuracy on test", "accuracy on labelled"}
    assert all(suite.accuracy is not None and 0.3 < suite.accuracy.value < 0.7 for suite in found.suites)


def test_a_token_counter_is_accurate_on_data_that_loves_length_and_misses_the_rules_on_length(tmp_path: Path) -> None:
    validation = _rows_of_lengths(80, seed=1)
    model = write_reward_model(tmp_path / "counter", token_counter(), validation)
    found = _certificate(tmp_path, model, validation, _rows_of_lengths(80, seed=2))
    assert _missed(found, maximum_length_effect=0.3, maximum_padding_flips=0.25) == {
        "length effect of padding",
        "length effect of repetition",
        "length effect of rewriting",
        "order flipped by padding",
    }
    assert found.length.padding.flips is not None and found.length.padding.flips.value == 1.0
    assert found.length.padding.flips_of_either_order is not None
    assert found.length.padding.flips_of_either_order.value == 1.0
    assert found.length.slope is not None and found.length.slope.ci_low is not None and found.length.slope.ci_low > 0
    accuracy, controlled = found.suites[0].accuracy, found.suites[0].length.controlled_accuracy
    assert accuracy is not None and accuracy.value == pytest.approx(0.9)
    assert controlled is not None and controlled.value < 0.8


def test_an_adapter_that_was_saved_without_its_head_is_refused_before_anything_is_scored(
    tmp_path: Path, of_inverted_labels: Path
) -> None:
    weights = load_file(of_inverted_labels / ADAPTER_FOLDER / "adapter_model.safetensors")
    headless = {name: value for name, value in weights.items() if "score" not in name}
    assert len(headless) == len(weights) - 1
    for path in (path for path in of_inverted_labels.rglob("*") if path.is_file()):
        copy = tmp_path / "headless" / path.relative_to(of_inverted_labels)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    save_file(headless, tmp_path / "headless" / ADAPTER_FOLDER / "adapter_model.safetensors")
    with pytest.raises(MissingPrerequisiteError, match=r"adapter holds no score\.weight: .* a random head"):
        _certificate(tmp_path, tmp_path / "headless", colour_rows(24, seed=99), colour_rows(3))
