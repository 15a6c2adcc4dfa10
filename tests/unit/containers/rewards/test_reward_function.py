"""The reward is what the policy will exploit: it must be the reward model's score, and never a silent NaN."""

from pathlib import Path

import pytest
import torch

from containers.contracts.certificate import ScoreStatistics
from containers.harness.errors import DivergedError
from containers.rewards.reward_model import ModelReward
from containers.scoring.scorer import RewardScorer
from tests.unit.factories.prompt_factory import answered, rewarded
from tests.unit.factories.tiny_policy import save_reward_model

pytestmark = pytest.mark.stages

PROMPTS = [({"role": "user", "content": text},) for text in ("Hi", "Hi", "Which one?", "Which one?")]
COMPLETIONS = (("Hello there.", 3, True), ("", 1, True), ("The red one.", 8, True), ("The red", 10, False))
ROWS = [
    answered(text, prompt=prompt, tokens=tokens, ended=ended)
    for prompt, (text, tokens, ended) in zip(PROMPTS, COMPLETIONS, strict=True)
]


@pytest.fixture
def scorer(tmp_path: Path) -> RewardScorer:
    folder = save_reward_model(tmp_path / "reward")
    return RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=512, batch_size=2)


def test_the_reward_is_the_score_of_the_whole_conversation(scorer: RewardScorer) -> None:
    scores, rewards = rewarded(ModelReward(scorer), ROWS)
    conversations = [[*row.conversation, {"role": "assistant", "content": row.text}] for row in ROWS]
    assert scores == rewards == pytest.approx([scorer.score([one])[0] for one in conversations], abs=1e-5)
    assert len({round(value, 4) for value in rewards}) == 4


def test_only_a_completion_that_was_cut_off_pays_the_penalty(scorer: RewardScorer) -> None:
    scores, rewards = rewarded(ModelReward(scorer), ROWS, missing_eos_penalty=0.75)
    assert [a - b for a, b in zip(scores, rewards, strict=True)] == pytest.approx([0, 0, 0, 0.75])


def test_a_long_completion_pays_for_how_far_it_goes_into_the_last_part(scorer: RewardScorer) -> None:
    """arXiv:2503.14476, eq. 13: of at most 10 tokens the last 4 cost up to 2; 8 tokens are half of the way in."""
    parts = {"overlong_fraction": 0.4, "overlong_penalty": 2.0}
    scores, rewards = rewarded(ModelReward(scorer), ROWS, parts=parts, max_completion_length=10)
    assert [a - b for a, b in zip(scores, rewards, strict=True)] == pytest.approx([0, 0, 1, 2])


def test_a_score_that_is_not_finite_stops_training(scorer: RewardScorer) -> None:
    with torch.no_grad():
        scorer.model.score.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite"):
        rewarded(ModelReward(scorer), ROWS)


def test_the_rounding_of_rewards_is_that_of_the_models_numbers(scorer: RewardScorer) -> None:
    assert ModelReward(scorer).rounding([0.5, -8.0]) == pytest.approx(8 * 2**-23)
    by = ScoreStatistics(mean=0.0, standard_deviation=2.0, num_scores=4, scores_of="these")
    assert ModelReward(scorer, normalisation=by).rounding([0.5]) == pytest.approx(2**-24)
    scorer.model.to(torch.bfloat16)
    assert ModelReward(scorer).rounding([4.0]) == pytest.approx(4 * 2**-7)
