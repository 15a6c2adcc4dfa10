"""How much goes through the reward model at once is what the configuration says, or what the device can take."""

from pathlib import Path
from typing import Any

import pytest
import torch

from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.names import StageName
from containers.packing.scoring import computed_tokens, score_rows
from containers.rewards.reward_model import load_scorer
from containers.scoring import scorer as scoring
from containers.scoring.batches import device_batch_tokens
from containers.scoring.scorer import RewardScorer
from containers.stages import evaluate_reward_model
from containers.token_budgets import CPU_BATCH_TOKENS, gpu_batch_tokens
from tests.unit.factories.made_reward_models import random_model, write_reward_model
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs

pytestmark = pytest.mark.stages


def test_a_cpu_has_its_measured_budget_and_a_gpu_one_by_its_memory() -> None:
    assert device_batch_tokens(torch.device("cpu")) == CPU_BATCH_TOKENS
    assert [gpu_batch_tokens(gib) for gib in (4, 23.6, 79.6, 139.8)] == [4096, 12288, 40960, 71680]


@pytest.mark.parametrize(("batch_tokens", "widest"), [(1, 1), (400, 400), (None, CPU_BATCH_TOKENS)])
def test_the_evaluator_keeps_to_the_budget_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_tokens: int | None, widest: int
) -> None:
    rows_seen: list[tuple[int, int]] = []
    budget = 0

    def packed(scorer: RewardScorer, sequences: list[list[int]]) -> list[float]:
        nonlocal budget
        budget = scorer.batch_tokens
        return pack(scorer, sequences)

    def seen(classifier: Any, head: Any, rows: list[list[list[list[int]]]]) -> list[float]:
        if budget == (batch_tokens or CPU_BATCH_TOKENS):
            rows_seen.extend(
                (sum(len(group) for group in groups), sum(computed_tokens(group) for group in groups))
                for groups in rows
            )
        return score_rows(classifier, head, rows)

    pack = RewardScorer._packed
    monkeypatch.setattr(RewardScorer, "_packed", packed)
    monkeypatch.setattr(scoring, "score_rows", seen)
    model = write_reward_model(tmp_path / "model", random_model(), colour_rows(4))
    config = EvaluateRewardModelConfig(max_length=512, batch_tokens=batch_tokens, num_bootstrap=100, num_edited_pairs=4)
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(4)), "reward_model": model}
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    evaluate_reward_model.run(context)
    assert len(rows_seen) > 1
    # Two answers to one prompt are one row, however long.
    assert all(conversations <= 2 or tokens <= widest for conversations, tokens in rows_seen)
    most = max(conversations for conversations, _ in rows_seen)
    assert most <= 2 if batch_tokens == 1 else most > 2


def test_a_stage_that_names_no_budget_scores_with_that_of_the_device(tmp_path: Path) -> None:
    model = write_reward_model(tmp_path / "model", random_model(), colour_rows(4))
    context = make_context(
        tmp_path, StageName.EVALUATE_REWARD_MODEL, EvaluateRewardModelConfig(), {"reward_model": model}
    )
    assert load_scorer(context, batch_size=4).batch_tokens == CPU_BATCH_TOKENS
