"""With normalised rewards, beta means the same with every reward model; a cut-off completion pays in the same unit."""

import json
from pathlib import Path

import pytest
import torch

from containers.contracts.certificate import ScoreStatistics
from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.evals.score_statistics import score_statistics
from containers.rewards.reward_model import ModelReward
from containers.scoring.scorer import RewardScorer
from containers.stages import train_sft
from tests.unit.factories.prompt_factory import answered, rewarded
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

ROWS = [answered(text, ended=ended) for text, ended in (("Hello.", True), ("No", True), ("The red", False))]


def _rewards(folder: Path, normalisation: ScoreStatistics | None) -> tuple[list[float], list[float]]:
    scorer = RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=512, batch_size=2)
    scores, rewards = rewarded(ModelReward(scorer, normalisation=normalisation), ROWS, missing_eos_penalty=0.5)
    return rewards, scores


def test_a_reward_is_the_score_less_its_mean_over_its_spread_and_the_curve_of_scores_stays(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "reward")
    by = ScoreStatistics(mean=0.25, standard_deviation=2.0, num_scores=4, scores_of="these")
    rewards, scores = _rewards(folder, by)
    plain, same_scores = _rewards(folder, None)
    assert scores == same_scores
    paid = [0.0, 0.0, 0.5]
    assert plain == pytest.approx([score - less for score, less in zip(scores, paid, strict=True)])
    assert rewards == pytest.approx([(score - 0.25) / 2 - less for score, less in zip(scores, paid, strict=True)])


def test_models_that_differ_in_scale_and_level_alone_give_the_same_rewards(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "reward")
    _, scores = _rewards(folder, None)
    louder = RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=512, batch_size=2).model
    louder.score.weight.data *= 10
    louder.save_pretrained(folder)
    _, loud_scores = _rewards(folder, None)
    quiet, loud = (score_statistics(found, scores_of="these") for found in (scores, loud_scores))
    assert loud.standard_deviation == pytest.approx(10 * quiet.standard_deviation, rel=1e-4)
    of_loud, _ = _rewards(folder, loud)
    of_quiet = [(score - quiet.mean) / quiet.standard_deviation for score in scores]
    assert of_loud[:2] == pytest.approx(of_quiet[:2], abs=1e-4)


def test_fine_tuning_gives_a_base_model_without_template_one_that_travels_on(tmp_path: Path) -> None:
    start = save_causal_model(tmp_path / "start", scale=0.02)
    (start / "chat_template.jinja").unlink()
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
    config = TrainSftConfig(chat_template=template, max_length=256, schedule=TrainingSchedule(max_steps=1))
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(16)), "start_model": start}
    context = make_context(tmp_path, StageName.TRAIN_SFT, config, inputs)
    train_sft.run(context)
    assert (context.output / "model" / "chat_template.jinja").read_text() == template
    assert json.loads((context.output / "training_info.json").read_text())["num_steps"] == 1
