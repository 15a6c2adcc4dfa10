"""A model that scores differently on one of the code paths has no certificate, and the code path is named."""

import json
from pathlib import Path

import pytest
import torch

from containers.certificate.parity import measure_parity
from containers.evals.sample_predictions import read_sample_predictions, write_reloaded_scores
from containers.harness.errors import StageError
from containers.scoring.scorer import RewardScorer
from tests.unit.factories.made_reward_models import MAX_POSITIONS, random_model, write_reward_model
from tests.unit.factories.spec_factory import colour_rows

pytestmark = pytest.mark.stages


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A model in float32 with 64 logged conversations of many lengths."""
    rows = colour_rows(32)
    for place, row in enumerate(rows):
        row["chosen"] = [{"role": "assistant", "content": "It depends. " * (1 + place)}]
    return write_reward_model(tmp_path / "model", random_model(), rows)


def _scorer(artifact: Path) -> RewardScorer:
    return RewardScorer.load(
        artifact / "merged", device="cpu", dtype=torch.float32, max_length=MAX_POSITIONS, batch_size=16
    )


def test_every_path_gives_the_same_64_scores(artifact: Path) -> None:
    parity = measure_parity(artifact, _scorer(artifact), trained_in=torch.float32)
    assert parity.num_conversations == 64
    assert parity.holds and parity.max_difference < 1e-4
    assert [path.name for path in parity.paths] == [
        "training collator",
        "evaluator, as configured",
        "evaluator, batches of 1",
        "evaluator, batches of 2",
        "evaluator, batches of 8",
        "evaluator, mixed lengths",
        "scorer of the policy stage",
    ]


def test_a_path_that_differs_alone_is_named_alone(artifact: Path) -> None:
    logged = [score for item in read_sample_predictions(artifact) for score in (item.score_chosen, item.score_rejected)]
    write_reloaded_scores(artifact, {"merged": logged, "adapter": [score + 0.01 for score in logged]})
    with pytest.raises(StageError) as refused:
        measure_parity(artifact, _scorer(artifact), trained_in=torch.float32)
    assert "The code paths that differ are adapter, reloaded by training: 0.01. The others agree" in str(refused.value)


def test_a_copy_reloaded_by_training_counts_only_for_the_conversations_that_fit(artifact: Path) -> None:
    logged = [score for item in read_sample_predictions(artifact) for score in (item.score_chosen, item.score_rejected)]
    write_reloaded_scores(artifact, {"adapter": logged})
    scorer = _scorer(artifact)
    scorer.max_length = 200
    parity = measure_parity(artifact, scorer, trained_in=torch.float32)
    assert parity.num_conversations < 64
    assert next(path for path in parity.paths if path.name.startswith("adapter")).max_difference == 0


def test_where_every_path_differs_from_what_was_logged_it_is_another_model(artifact: Path) -> None:
    path = artifact / "sample_predictions.json"
    samples = json.loads(path.read_text())
    samples[3]["score_chosen"] += 0.5
    path.write_text(json.dumps(samples))
    with pytest.raises(StageError, match=r"0\.5 away .* It is not the model that was trained"):
        measure_parity(artifact, _scorer(artifact), trained_in=torch.float32)


def test_a_pad_token_that_moves_the_score_in_training_is_found(artifact: Path) -> None:
    """transformers reads the score at the last token that is no pad token: here the line break at the end is one."""
    scorer = _scorer(artifact)
    scorer.model.config.pad_token_id = scorer.tokenizer.convert_tokens_to_ids("Ċ")
    with pytest.raises(StageError, match="The code paths that differ are training collator"):
        measure_parity(artifact, scorer, trained_in=torch.float32)
