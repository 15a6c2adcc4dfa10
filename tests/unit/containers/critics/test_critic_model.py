"""A critic that is not the reward model it should be starts from noise; one that is has no second copy of the base."""

from pathlib import Path
from typing import Any

import pytest
import torch

from containers.contracts.configs.parts.rewards import LengthTerm, RewardModelTerm
from containers.contracts.configs.parts.training import LoraSettings
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import StageName
from containers.critics.critic import Critic
from containers.critics.critic_model import start_critic
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.models.loading import apply_lora, load_causal_model, load_tokenizer
from containers.packing.logps import completion_packs
from containers.scoring.scorer import RewardScorer
from tests.unit.factories.adapter_factory import trained_reward_model
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model, tiny_tokenizer

pytestmark = pytest.mark.stages

PROMPTS, COMPLETIONS = [[70, 71, 72, 73], [74, 75]], [[80, 81, 82], [83, 84, 85, 86]]
CONFIG = TrainPolicyConfig(algorithm="ppo", lora=LoraSettings(r=4, alpha=8), gradient_checkpointing=False)


def context_of(folder: Path, inputs: dict[str, Path], **changes: Any) -> StageContext:
    return make_context(folder, StageName.TRAIN_POLICY, CONFIG.model_copy(update=changes), inputs)


def started(context: StageContext) -> tuple[Critic, Any]:
    """The critic, and the start model that became the policy."""
    config = context.spec.config
    assert isinstance(config, TrainPolicyConfig)
    start = context.input_path("start_model")
    policy = load_causal_model(start, dtype=torch.float32, device="cpu")
    critic = start_critic(context, config, policy, load_tokenizer(start))
    if config.lora is not None:
        apply_lora(policy, config.lora, task_type="CAUSAL_LM")
    return critic, policy


def reward_model_of(folder: Path, *, digest: str = "sha256:0") -> dict[str, Path]:
    made = trained_reward_model(folder, digest=digest)
    return {"start_model": made.base, "reward_model": folder}


def values_of(critic: Critic) -> list[float]:
    found: dict[int, list[float]] = {}
    with torch.no_grad():
        packs = completion_packs(PROMPTS, COMPLETIONS, max_tokens=100)
        with critic._computing(packs):
            for pack in packs:
                values, lasts = critic._values(pack)
                for row, own, last in zip(pack.rows, pack.by_completion(values), lasts.tolist(), strict=True):
                    found[row] = [*own.tolist(), last]
    return [value for row in sorted(found) for value in found[row]]


def scores_of(folder: Path) -> list[float]:
    """The score of every beginning of a completion, by the scorer of the evaluation stages."""
    scorer = RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=100, batch_size=4)
    beginnings = [
        [*prompt, *completion[:length]]
        for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True)
        for length in range(len(completion) + 1)
    ]
    return scorer.score_tokens(beginnings)


def test_the_reward_model_is_an_adapter_on_the_policys_own_weights_and_says_what_it_says(tmp_path: Path) -> None:
    inputs = reward_model_of(tmp_path / "made")
    context = context_of(tmp_path, inputs, rewards=(RewardModelTerm(normalise="validation", weight=3.0),))
    critic, policy = started(context)
    scores = scores_of(tmp_path / "made" / "merged")
    assert values_of(critic) == pytest.approx([3 * (score - 0.5) / 2 for score in scores], abs=1e-4)
    own = {weight.data_ptr() for weight in policy.parameters() if not weight.requires_grad}
    shared = {weight.data_ptr() for name, weight in critic.backbone.named_parameters() if "lora" not in name}
    assert shared <= own
    assert {name.split(".")[-3] for name in critic.trained if "lora" in name} >= {"lora_A", "lora_B"}
    assert all(weight.dtype == torch.float32 for weight in critic.trained.values())
    assert "an adapter on the policy's own frozen weights" in (context.work / "events.jsonl").read_text()


def test_a_reward_model_from_another_start_is_a_model_of_its_own_with_the_same_values(tmp_path: Path) -> None:
    inputs = reward_model_of(tmp_path / "made", digest="sha256:1")
    context = context_of(tmp_path, inputs)
    critic, policy = started(context)
    assert values_of(critic) == pytest.approx(scores_of(tmp_path / "made" / "merged"), abs=1e-5)
    own = {weight.data_ptr() for weight in policy.parameters()}
    assert not own & {weight.data_ptr() for weight in critic.backbone.parameters()}
    assert "a model of its own with new adapters" in (context.work / "events.jsonl").read_text()


@pytest.mark.parametrize("model", ["start_model", "policy_features"])
def test_a_critic_without_a_reward_model_expects_nothing_at_first(tmp_path: Path, model: str) -> None:
    inputs = {"start_model": save_causal_model(tmp_path / "start")}
    settings = CONFIG.critic.model_copy(update={"model": model})
    critic, policy = started(context_of(tmp_path, inputs, critic=settings, rewards=(LengthTerm(target=(1, 9)),)))
    assert values_of(critic) == [0.0] * 9
    only_head = list(critic.trained) == ["score"]
    assert only_head is (model == "policy_features") is not critic.learns_states
    if model == "start_model":
        own = {weight.data_ptr() for weight in policy.parameters()}
        assert any(weight.data_ptr() in own for weight in critic.backbone.parameters())


def test_beside_a_policy_of_which_every_weight_moves_the_critic_has_its_own(tmp_path: Path) -> None:
    for place, inputs in enumerate((reward_model_of(tmp_path / "made"), None)):
        settings = CONFIG.critic.model_copy(update={"model": "reward_model" if inputs else "start_model"})
        given = inputs or {"start_model": save_causal_model(tmp_path / "start")}
        context = context_of(tmp_path / str(place), given, critic=settings, lora=None)
        critic, policy = started(context)
        own = {weight.data_ptr() for weight in policy.parameters()}
        assert not own & {weight.data_ptr() for weight in critic.backbone.parameters()}


def test_a_reward_model_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = save_reward_model(tmp_path / "other" / "merged")
    tokenizer = tiny_tokenizer(("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<more>"))
    tokenizer.save_pretrained(other)
    inputs = {"start_model": save_causal_model(tmp_path / "start"), "reward_model": tmp_path / "other"}
    with pytest.raises(BadConfigError, match=r"vocabulary of test/reward_model is not the policy's.*Use start_model"):
        started(context_of(tmp_path, inputs))


def test_a_critic_that_was_saved_goes_on_with_the_same_update(tmp_path: Path) -> None:
    inputs = {"start_model": save_causal_model(tmp_path / "start")}
    settings = CONFIG.critic.model_copy(update={"model": "start_model", "learning_rate": 0.1})
    critics = [started(context_of(tmp_path / name, inputs, critic=settings))[0] for name in ("one", "other")]

    def learn(critic: Critic, times: int) -> None:
        for _ in range(times):
            critic.optimizer.zero_grad()
            for place, weight in enumerate(critic.trained.values()):
                weight.grad = torch.full_like(weight, 0.1 + place)
            critic._step()

    learn(critics[0], 2)
    critics[0].is_ready = True
    critics[0].save(tmp_path)
    critics[1].load(tmp_path)
    assert (critics[1].steps, critics[1].is_ready) == (2, True)
    for critic in critics:
        learn(critic, 1)
    for name, weight in critics[0].trained.items():
        assert torch.equal(weight, critics[1].trained[name]), name
    assert values_of(critics[0]) == values_of(critics[1]) != [0.0] * 9
