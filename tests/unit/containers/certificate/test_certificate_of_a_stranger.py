"""A reward model that was trained elsewhere: a folder of weights and nothing beside it gets the same certificate."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForSequenceClassification

from containers.certificate.parity import measure_parity_of_stranger
from containers.contracts.certificate import Certificate
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.names import StageName
from containers.harness.errors import BadConfigError, MissingPrerequisiteError, StageError
from containers.models.loading import reward_model_folder
from containers.scoring.scorer import RewardScorer
from containers.stages import evaluate_reward_model
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model, tiny_config, tiny_tokenizer

pytestmark = pytest.mark.stages


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights, configuration and tokenizer, as a hub repository holds them."""
    folder, tokenizer = tmp_path_factory.mktemp("stranger"), tiny_tokenizer()
    Qwen3ForSequenceClassification(tiny_config(tokenizer, initializer_range=0.2, num_labels=1)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _certificate(tmp_path: Path, reward_model: Path, **changes: object) -> Certificate:
    config = EvaluateRewardModelConfig.model_validate({"max_length": 256, "num_bootstrap": 200, **changes})
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(1)), "reward_model": reward_model}
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    evaluate_reward_model.run(context)
    return Certificate.model_validate_json((context.output / "certificate.json").read_bytes())


def test_it_is_judged_and_its_paths_agree_with_one_by_one(tmp_path: Path, stranger: Path) -> None:
    certificate = _certificate(tmp_path, stranger)
    parity = certificate.parity
    assert certificate.suites[0].num_pairs == 24
    assert parity.reference == "evaluator, batches of 1"
    assert {path.name for path in parity.paths} == {
        "training collator",
        "evaluator, as configured",
        "evaluator, batches of 2",
        "evaluator, batches of 8",
        "evaluator, mixed lengths",
        "scorer of the policy stage",
    }
    assert 0 < parity.num_conversations <= 64
    assert parity.max_difference <= parity.bound == 1e-4
    assert (certificate.model.algorithm, certificate.model.num_training_examples) == ("", 0)


def test_an_artifact_of_ours_without_its_records_is_no_stranger(tmp_path: Path, stranger: Path) -> None:
    """Else deleting `training_info.json` would be a way around the comparison with what training logged."""
    artifact = tmp_path / "artifact"
    shutil.copytree(stranger, artifact / "merged")
    assert reward_model_folder(artifact) == artifact / "merged"
    with pytest.raises(MissingPrerequisiteError, match=r"training_info\.json cannot be read"):
        _certificate(tmp_path, artifact)


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisiteError, match=r"no trained reward model: score\.weight"):
        _certificate(tmp_path, save_causal_model(tmp_path / "causal"))


def test_a_length_below_every_pair_is_told(tmp_path: Path, stranger: Path) -> None:
    with pytest.raises(BadConfigError, match="max_length 8 is shorter than every validation pair"):
        _certificate(tmp_path, stranger, max_length=8)


def test_a_path_that_scores_otherwise_refuses_the_certificate(
    tmp_path: Path, stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = RewardScorer.load(stranger, device="cpu", dtype=torch.float32, max_length=256, batch_size=4)
    row = colour_rows(1)[0]
    conversations = [[*row["prompt"], *row[side]] for side in ("chosen", "rejected")]
    score_tokens = RewardScorer.score_tokens

    def with_padding_at_work(self: RewardScorer, token_ids: list[list[int]]) -> list[float]:
        return [score + 0.01 * (self.batch_size == 8) for score in score_tokens(self, token_ids)]

    monkeypatch.setattr(RewardScorer, "score_tokens", with_padding_at_work)
    with pytest.raises(StageError, match=r"batches of 1` gives .* evaluator, batches of 8: 0\.01"):
        measure_parity_of_stranger(stranger, scorer, conversations, precision=torch.float32)
