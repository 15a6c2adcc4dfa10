"""The reward is what the policy will exploit: it must be the reward model's score, and never a silent NaN."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from containers.harness.errors import DivergedError
from containers.rewards.base import PolicyReward
from containers.rewards.reward_model import ModelReward
from containers.scoring.scorer import RewardScorer
from tests.unit.factories.tiny_policy import save_reward_model

pytestmark = pytest.mark.stages

END = 7
PROMPTS = [[{"role": "user", "content": text}] for text in ("Hi", "Hi", "Which one?", "Which one?")]
COMPLETIONS = [[{"role": "assistant", "content": text}] for text in ("Hello there.", "", "The red one.", "The red")]
COMPLETION_IDS = [[4, 5, END], [END], [4, 4, 4, END], [4, 4, 4, 4]]


@pytest.fixture
def scorer(tmp_path: Path) -> RewardScorer:
    folder = save_reward_model(tmp_path / "reward")
    return RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=512, batch_size=2)


class Log:
    """Takes what TRL's trainer takes from a reward function."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}
        self.metrics: dict[str, float] = {}

    def call(self, reward: PolicyReward) -> list[float]:
        return reward(
            prompts=PROMPTS,
            completions=COMPLETIONS,
            completion_ids=COMPLETION_IDS,
            trainer_state=SimpleNamespace(global_step=11),
            log_extra=self.columns.__setitem__,
            log_metric=self.metrics.__setitem__,
            domain=["general"] * 4,
        )


def test_the_reward_is_the_score_of_the_whole_conversation(scorer: RewardScorer) -> None:
    rewards = Log().call(PolicyReward(ModelReward(scorer), end_ids=[END], missing_eos_penalty=0.0))
    conversations = [prompt + reply for prompt, reply in zip(PROMPTS, COMPLETIONS, strict=True)]
    assert rewards == pytest.approx([scorer.score([one])[0] for one in conversations], abs=1e-5)
    assert len({round(value, 4) for value in rewards}) == 4


def test_only_a_completion_that_was_cut_off_pays_the_penalty(scorer: RewardScorer) -> None:
    log = Log()
    free = Log().call(PolicyReward(ModelReward(scorer), end_ids=[END], missing_eos_penalty=0.0))
    rewards = log.call(PolicyReward(ModelReward(scorer), end_ids=[END, 9], missing_eos_penalty=0.75))
    assert [a - b for a, b in zip(free, rewards, strict=True)] == pytest.approx([0, 0, 0, 0.75])
    assert log.columns["score"] == free
    assert log.columns["ended"] == [True, True, True, False]
    assert log.columns["num_tokens"] == [3, 1, 4, 4]
    assert log.metrics == {"score": pytest.approx(sum(free) / 4), "ended_fraction": 0.75}


def test_a_score_that_is_not_finite_stops_training_and_names_the_step(scorer: RewardScorer) -> None:
    with torch.no_grad():
        scorer.model.score.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match=r"Step 12: .*not finite"):
        Log().call(PolicyReward(ModelReward(scorer), end_ids=[END], missing_eos_penalty=0.0))
