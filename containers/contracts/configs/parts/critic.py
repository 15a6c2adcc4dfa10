"""Configuration of the critic: what expects the reward of a completion at each of its tokens."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from containers.contracts.base import Frozen, Positive
from containers.contracts.configs.parts.rewards import RewardModelTerm, RewardTerm
from containers.contracts.configs.parts.training import LoraSettings

CriticModel = Literal["reward_model", "start_model", "policy_features"]


class CriticSettings(Frozen):
    """The critic of PPO."""

    model: CriticModel | None = Field(
        None,
        description="What it starts as. reward_model: the run's certified reward model, as an adapter on the policy's "
        "own frozen weights where it was trained from the same model, else as a model of its own; start_model: the "
        "start model with a new score head, likewise; policy_features: a score head on the policy's states alone, "
        "without adapters. null: reward_model where that gives rewards, else start_model",
    )
    lora: LoraSettings = Field(LoraSettings(), description="Its adapters, where it does not start as one")
    learning_rate: Positive = Field(1e-5, description="Of its own AdamW; constant")
    value_clip: Positive | None = Field(
        0.2, description="A value may move so far from what it was when the completion was written; null: any distance"
    )
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        10,
        description="The policy does not move until the critic explains minimum_explained_variance of its rewards, for "
        "at most so many steps",
    )
    minimum_explained_variance: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="Share of the variance of what comes after a token; 1 is all of it"
    )
    cut_off: Literal["end", "bootstrap"] = Field(
        "end",
        description="A completion that was cut off: end: nothing comes after it; bootstrap: what the critic expects "
        "there. mask_cut_off and missing_eos_penalty apply too",
    )

    def start_of(self, rewards: Sequence[RewardTerm]) -> CriticModel:
        """Return what it starts as, beside these rewards."""
        if self.model is not None:
            return self.model
        return "reward_model" if any(isinstance(term, RewardModelTerm) for term in rewards) else "start_model"


def critic_contradictions(
    settings: CriticSettings, rewards: Sequence[RewardTerm], *, has_critic: bool
) -> Iterator[tuple[str, str]]:
    """Yield for each mistake: its key in train_policy.critic, and a sentence; an empty key is the section."""
    if not has_critic:
        if settings != CriticSettings():
            yield "", "is read by parts.advantage gae alone, which algorithm ppo has. Leave it out, or use ppo."
        return
    if settings.model == "reward_model" and not any(isinstance(term, RewardModelTerm) for term in rewards):
        yield (
            "model",
            "reward_model: no reward model is among train_policy.rewards, so the run has none with a certificate. Use "
            "start_model, or add the reward model.",
        )
