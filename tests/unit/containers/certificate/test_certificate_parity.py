"""A model that scores differently on one of the code paths has no certificate, and the code path is named."""

import json
import math
from pathlib import Path

import pytest
import torch

from containers.certificate.parity import measure_parity
from containers.contracts.certificate import ScoreParity
from containers.evals.sample_predictions import read_sample_predictions, write_reloaded_scores
from containers.harness.errors import StageError
from containers.scoring.rounding import allowed_difference
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
    assert (parity.num_pairs, parity.num_orders_changed) == (32, 0)
    assert parity.margin_difference is not None and parity.margin_difference < 1e-3
    assert [path.name for path in parity.paths] == [
        "training collator",
        "evaluator, as configured",
        "evaluator, batches of 1",
        "evaluator, batches of 2",
        "evaluator, batches of 8",
        "evaluator, mixed lengths",
        "scorer of the policy stage",
    ]


def logged_scores(artifact: Path) -> list[float]:
    return [score for item in read_sample_predictions(artifact) for score in (item.score_chosen, item.score_rejected)]


def typical_margin(scores: list[float]) -> float:
    """Their root mean square."""
    margins = [a - b for a, b in zip(scores[::2], scores[1::2], strict=True)]
    return math.sqrt(sum(margin**2 for margin in margins) / len(margins))


def parity_with(artifact: Path, reloaded: list[float]) -> ScoreParity:
    """The parity in bfloat16 of a model whose adapter scored so when it was reloaded."""
    write_reloaded_scores(artifact, {"adapter": reloaded})
    return measure_parity(artifact, _scorer(artifact), trained_in=torch.bfloat16)


def test_margins_and_orders_are_measured_beside_scores(artifact: Path) -> None:
    logged = logged_scores(artifact)
    typical = typical_margin(logged)
    moved = [logged[0] + 0.05 * typical, *logged[1:]]
    parity = parity_with(artifact, moved)
    assert (parity.num_pairs, parity.orders_bound) == (32, 1)
    assert parity.typical_margin == pytest.approx(typical)
    assert parity.margin_difference == pytest.approx(0.05)
    assert next(path for path in parity.paths if path.name.startswith("adapter")).max_difference == pytest.approx(
        0.05 * typical
    )


def test_a_margin_that_bfloat16_would_allow_but_rewards_would_feel_is_refused_with_what_to_do(artifact: Path) -> None:
    """Each score is within what rounding explains; the margin of the two is not."""
    logged = logged_scores(artifact)
    typical = typical_margin(logged)
    assert 0.08 * typical < allowed_difference(torch.bfloat16, logged, num_layers=2, is_rounded=True)
    with pytest.raises(StageError, match=r"adapter, reloaded by training: .*, margins .* orders changed") as refused:
        parity_with(artifact, [logged[0] + 0.08 * typical, logged[1] - 0.08 * typical, *logged[2:]])
    assert "15% of a typical one" in str(refused.value)
    assert "Rounding (bfloat16) explains it" in str(refused.value) and "precision float32" in str(refused.value)


def test_one_order_in_twenty_may_change_and_no_more(artifact: Path) -> None:
    logged = logged_scores(artifact)
    # The pairs nearest to equal, moved just past each other.
    nearest = sorted(range(32), key=lambda place: abs(logged[2 * place] - logged[2 * place + 1]))
    for count in (1, 2):
        moved = list(logged)
        for place in nearest[:count]:
            chosen, rejected = logged[2 * place : 2 * place + 2]
            past = math.copysign(2e-4, rejected - chosen)
            moved[2 * place : 2 * place + 2] = (chosen + rejected + past) / 2, (chosen + rejected - past) / 2
        if count == 1:
            parity = parity_with(artifact, moved)
            assert parity.num_orders_changed == 1 and parity.holds
        else:
            with pytest.raises(StageError, match="orders changed 2"):
                parity_with(artifact, moved)


def test_a_shift_of_all_scores_changes_neither_margins_nor_orders(artifact: Path) -> None:
    shift = 0.001
    parity = parity_with(artifact, [score + shift for score in logged_scores(artifact)])
    path = next(path for path in parity.paths if path.name.startswith("adapter"))
    assert path.max_difference == pytest.approx(shift)
    assert path.max_margin_difference < 1e-6 and path.num_orders_changed == 0


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
