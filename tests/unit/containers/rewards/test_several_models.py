"""Several reward models give one reward: their mean, the lowest, or less where they disagree; each is certified."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from containers.contracts.certificate import ScoreStatistics
from containers.contracts.configs.parts.rewards import (
    FurtherRewardModel,
    LengthTerm,
    RewardModelTerm,
    reward_contradictions,
)
from containers.contracts.configs.parts.training import LoraSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import StageName
from containers.contracts.records import ComparedTerm
from containers.document.markdown import markdown
from containers.evals.sample_predictions import SAMPLE_PREDICTIONS_FILE
from containers.evals.score_statistics import SCORE_STATISTICS_FILE
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError, StageError
from containers.models.loading import apply_lora, load_causal_model
from containers.report.policy.comparison import policy_section
from containers.rewards.base import Reward, StartedTerm
from containers.rewards.judging import compared_terms, judge
from containers.rewards.reward_model import ModelReward, SeveralModels, start
from containers.scoring.scorer import RewardScorer, score_head_sha256
from containers.stages import train_policy
from tests.unit.factories.adapter_factory import trained_reward_model
from tests.unit.factories.prompt_factory import answered, write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.report.report_records import policy_evaluation
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

ROWS = [answered(text) for text in ("Hello.", "No", "The red one, and the blue one.")]
OTHER = FurtherRewardModel(path="somewhere", certificate="somewhere")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("several")
    made = {
        "prompts": write_prompts(folder / "prompts", train=["Hi", "Which one?"]),
        "start_model": save_causal_model(folder / "start"),
    }
    for ending, seed, mean in (("", 1, 0.5), ("_2", 2, -3.0), ("_3", 5, 0.0)):
        merged = save_reward_model(folder / f"model{ending}" / "merged", seed=seed)
        by = ScoreStatistics(mean=mean, standard_deviation=0.1 * seed, num_scores=9, scores_of="these")
        (merged / SCORE_STATISTICS_FILE).write_text(by.model_dump_json())
        made[f"reward_model{ending}"] = folder / f"model{ending}"
        made[f"certificate{ending}"] = write_certificate(
            folder / f"c{ending}", score_head_sha256=score_head_sha256(merged)
        )
    return made


def context_of(tmp_path: Path, inputs: dict[str, Path], term: RewardModelTerm, **changes: Any) -> StageContext:
    config = TrainPolicyConfig(
        rewards=(term,),
        num_generations=2,
        max_prompt_length=64,
        max_completion_length=4,
        lora=LoraSettings(r=4, alpha=8),
        gradient_checkpointing=False,
        schedule=TrainingSchedule(max_steps=2, save_steps=2),
        **changes,
    )
    return make_context(tmp_path, StageName.TRAIN_POLICY, config, inputs)


def term_of(count: int, **changes: Any) -> RewardModelTerm:
    return RewardModelTerm(normalise="validation", others=(OTHER,) * (count - 1), **changes)


def started(tmp_path: Path, inputs: dict[str, Path], term: RewardModelTerm) -> Reward:
    context = context_of(tmp_path, inputs, term)
    config = context.spec.config
    assert isinstance(config, TrainPolicyConfig)
    return start(context, config, term)


def alone(tmp_path: Path, inputs: dict[str, Path], ending: str) -> list[float]:
    """The normalised scores of one model by itself."""
    own = {**inputs, "reward_model": inputs[f"reward_model{ending}"], "certificate": inputs[f"certificate{ending}"]}
    reward = started(tmp_path, own, RewardModelTerm(normalise="validation"))
    assert isinstance(reward, ModelReward)
    return reward.rewards([float(value) for value in reward.scored(ROWS)])


@pytest.mark.parametrize(
    ("changes", "combined"),
    [
        ({}, statistics.mean),
        ({"combine": "worst"}, min),
        ({"combine": "own"}, lambda scores: scores[0]),
        (
            {"combine": "mean_less_spread", "spread_weight": 2.0},
            lambda scores: statistics.mean(scores) - 2 * statistics.stdev(scores),
        ),
    ],
    ids=["mean", "worst", "own", "mean less spread"],
)
def test_the_normalised_scores_are_combined(
    tmp_path: Path, inputs: dict[str, Path], changes: dict[str, Any], combined: Any
) -> None:
    reward = started(tmp_path, inputs, term_of(3, **changes))
    assert isinstance(reward, SeveralModels)
    of_each = [alone(tmp_path / f"alone{ending}", inputs, ending) for ending in ("", "_2", "_3")]
    expected = [combined(scores) for scores in zip(*of_each, strict=True)]
    values = reward.values(ROWS)
    assert values == pytest.approx(expected, rel=1e-4)
    assert reward.rewards([float(value) for value in values if isinstance(value, float)]) == values
    assert len({round(value, 3) for value in expected}) == 3


def test_a_policy_is_judged_by_each_of_them_too(tmp_path: Path, inputs: dict[str, Path]) -> None:
    term = term_of(2, combine="worst")
    found = judge([StartedTerm(term, started(tmp_path, inputs, term))], [*ROWS, ROWS[0]])
    own, other = found.values["reward_model.1"], found.values["reward_model.2"]
    assert own[:3] == pytest.approx(alone(tmp_path / "1", inputs, ""), rel=1e-4)
    assert other[:3] == pytest.approx(alone(tmp_path / "2", inputs, "_2"), rel=1e-4)
    assert found.totals == tuple(map(min, own, other))
    assert found.totals[3] == found.totals[0]
    assert [one.name for one in compared_terms([term])] == ["reward_model.1", "reward_model.2"]
    beside = LengthTerm(name="short", target=(1, 9))
    names = ["reward_model", "reward_model.1", "reward_model.2", "short"]
    assert [one.name for one in compared_terms([term, beside])] == names


@pytest.mark.parametrize(("combine", "only"), [("own", [False, True, True]), ("worst", [False] * 3)])
def test_the_report_tells_which_of_them_trained_the_policy(combine: str, only: list[bool]) -> None:
    members = compared_terms([term_of(3, combine=combine)])
    assert [isinstance(one, RewardModelTerm) and one.only_measures for one in members] == only
    evaluation = policy_evaluation()
    terms = tuple(
        ComparedTerm(
            name=one.name,
            is_outcome=False,
            policy=evaluation.reward_policy,
            reference=evaluation.reward_reference,
            difference=evaluation.reward_difference,
            only_measures=measures,
        )
        for one, measures in zip(members, only, strict=True)
    )
    text = markdown(policy_section(evaluation.model_copy(update={"terms": terms}), by_pairs=False))
    if combine == "own":
        assert "trained on: reward_model.1. They" in text
        assert "reward_model.2, reward_model.3 trained nothing" in text
    else:
        assert "trained on: reward_model.1, reward_model.2, reward_model.3. They" in text
        assert "trained nothing" not in text


def test_a_policy_is_trained_on_them_and_the_log_says_how(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context = context_of(tmp_path, inputs, term_of(2, combine="worst"))
    train_policy.run(context)
    notes = (context.work / "events.jsonl").read_text()
    assert "Of the normalised scores of 2 reward models, the lowest is the reward." in notes
    assert notes.count("its score head is sha256:") == 2


def test_a_further_model_without_its_own_certificate_gives_no_reward(tmp_path: Path, inputs: dict[str, Path]) -> None:
    wrong = {**inputs, "certificate_2": inputs["certificate_3"]}
    with pytest.raises(MissingPrerequisiteError, match="score head is sha256"):
        started(tmp_path, wrong, term_of(2))
    without = {name: path for name, path in inputs.items() if name != "certificate_2"}
    with pytest.raises(MissingPrerequisiteError, match="needs an input `certificate_2`"):
        started(tmp_path / "without", without, term_of(2))


def trained(folder: Path, *, digest: str = "sha256:0") -> dict[str, Path]:
    """A run's own reward model and two others, trained with other seeds from the policy's start model."""
    made = {"prompts": write_prompts(folder / "prompts", train=["Hi", "Which one?"])}
    for ending, seed in (("", 1), ("_2", 2), ("_3", 3)):
        artifact = trained_reward_model(folder / f"trained{ending}", seed=seed, digest=digest)
        made["start_model"] = artifact.base
        made[f"reward_model{ending}"] = folder / f"trained{ending}"
        head = score_head_sha256(artifact.merged)
        made[f"certificate{ending}"] = write_certificate(folder / f"c{ending}", score_head_sha256=head)
    return made


def test_models_trained_from_the_start_model_are_adapters_on_its_own_tensors_with_the_same_scores(
    tmp_path: Path,
) -> None:
    inputs, term = trained(tmp_path), term_of(3)
    reward = started(tmp_path / "run", inputs, term)
    base = load_causal_model(inputs["start_model"], dtype=torch.float32, device="cpu")
    own = {weight.data_ptr() for weight in base.parameters()}
    reward.on_base(base)
    apply_lora(base, LoraSettings(r=4, alpha=8), task_type="CAUSAL_LM")  # the policy's adapters change none of them
    assert isinstance(reward, SeveralModels)
    for ending, member in zip(("", "_2", "_3"), reward.members, strict=True):
        scorer = RewardScorer.load(
            inputs[f"reward_model{ending}"] / "merged", device="cpu", dtype=torch.float32, max_length=64, batch_size=4
        )
        written = [[*one.conversation, {"role": "assistant", "content": one.text}] for one in ROWS]
        assert member.scored(ROWS) == pytest.approx(scorer.score_written(written), abs=1e-5)
        weights = {weight.data_ptr() for name, weight in member._scorer.model.named_parameters() if "layers" in name}
        assert weights & own


@pytest.mark.parametrize("digest", ["sha256:0", "sha256:1"])
def test_a_training_says_which_reward_models_share_the_policys_weights(tmp_path: Path, digest: str) -> None:
    context = context_of(tmp_path / "run", trained(tmp_path, digest=digest), term_of(3, combine="worst"))
    train_policy.run(context)
    notes = (context.work / "events.jsonl").read_text()
    assert notes.count("is an adapter on the policy's own frozen weights") == (3 if digest == "sha256:0" else 0)
    assert notes.count("its score head is sha256:") == 3
    held = (
        "The reward model holds: on pairs that its training logged, with the start model's float32 weights, margins of"
    )
    assert notes.count(held) == (3 if digest == "sha256:0" else 0)


def test_a_reward_model_that_scores_otherwise_on_the_policys_weights_is_refused_before_the_first_step(
    tmp_path: Path,
) -> None:
    inputs = trained(tmp_path)
    logged = inputs["reward_model"] / SAMPLE_PREDICTIONS_FILE
    samples = json.loads(logged.read_text())
    for sample in samples:
        sample["score_chosen"], sample["score_rejected"] = sample["score_rejected"], sample["score_chosen"]
    logged.write_text(json.dumps(samples))
    with pytest.raises(StageError, match="is not the certified one there: on pairs that its training logged"):
        train_policy.run(context_of(tmp_path / "run", inputs, term_of(1)))


@pytest.mark.parametrize(
    ("term", "key", "text"),
    [
        (RewardModelTerm(others=(OTHER,)), "rewards.0.normalise", "differ in level and scale. Use validation."),
        (RewardModelTerm(combine="worst"), "rewards.0.combine", "`others` names none"),
        (term_of(2, spread_weight=2.0), "rewards.0.spread_weight", "only read by `combine: mean_less_spread`"),
    ],
)
def test_settings_that_make_no_sense_are_refused(term: RewardModelTerm, key: str, text: str) -> None:
    ((found, said),) = reward_contradictions([term])
    assert found == key and text in said
