"""A policy and its critic that have both moved from where they started, and completions whose rewards are known."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from peft import PeftModel
from torch import Tensor, nn

from containers.algorithms.policy_step import PolicyStep
from containers.contracts.configs.parts.critic import CriticSettings
from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS, PolicyAlgorithm
from containers.contracts.configs.parts.training import LoraSettings
from containers.critics.critic import Critic
from containers.models.adapters import apply_lora
from containers.models.loading import load_causal_model
from containers.models.shared_base import sharing_classifier
from containers.packing.logps import add_logps, causal_of
from containers.rollouts.rollout import StepBatch
from containers.scoring.scorer import classifier_of, score_head_weight

BETA, TEMPERATURE = 0.1, 0.7
PPO = POLICY_ALGORITHMS["ppo"].model_copy(update={"beta": BETA})
_LORA = LoraSettings(r=4, alpha=8)


@dataclass
class Case:
    """A policy and its critic that both have moved from where they started, and completions."""

    policy: PeftModel
    critic: Critic
    value_model: PeftModel
    prompts: list[list[int]]
    completions: list[list[int]]
    rewards: Tensor
    ended: Tensor
    siblings: int
    accelerator: Accelerator

    def batch(self, rows: range | None = None) -> StepBatch:
        chosen = range(len(self.completions)) if rows is None else rows
        at = list(chosen)
        return StepBatch(
            prompts=[self.prompts[row] for row in chosen],
            completions=[self.completions[row] for row in chosen],
            first_row=0,
            rewards=self.rewards[at],
            lengths=torch.tensor([len(self.completions[row]) for row in chosen]),
            ended=self.ended[at],
            takes_part=torch.ones(len(at), dtype=torch.bool),
            divides=torch.ones(len(at) // self.siblings, dtype=torch.bool),
        )

    def step(self, cut: Callable[..., Any], *, method: PolicyAlgorithm = PPO, updates: int = 1) -> PolicyStep:
        return PolicyStep(
            accelerator=self.accelerator,
            method=method,
            num_generations=self.siblings,
            longest=12,
            updates_per_rollout=updates,
            cut=cut,
            critic=self.critic,
        )

    def gradients(self) -> tuple[Tensor, Tensor]:
        return gradient_of(self.policy), gradient_of(self.value_model)

    def clear(self) -> None:
        self.policy.zero_grad()
        self.value_model.zero_grad()


def gradient_of(model: nn.Module) -> Tensor:
    parts = [weight.grad.flatten() for _, weight in sorted(model.named_parameters()) if weight.grad is not None]
    return torch.cat(parts).clone()


def moved(model: PeftModel, seed: int) -> PeftModel:
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn_like(weight)
    return model


def make_case(start: Path, *, prompt_lengths: tuple[int, ...], siblings: int) -> Case:
    """The same policy, critic and completions each time."""
    torch.manual_seed(4)  # adapters begin with random numbers
    base = load_causal_model(start, dtype=torch.float32, device="cpu")
    value_model = apply_lora(sharing_classifier(base), _LORA, task_type="SEQ_CLS")
    policy = apply_lora(base, _LORA, task_type="CAUSAL_LM")
    assert isinstance(policy, PeftModel) and isinstance(value_model, PeftModel)
    moved(policy, 0), moved(value_model, 1)
    add_logps(causal_of(policy), temperature=TEMPERATURE)
    classifier = classifier_of(value_model)
    trained = {name: weight for name, weight in value_model.named_parameters() if weight.requires_grad}
    critic = Critic(
        classifier,
        classifier.model,
        score_head_weight(value_model),  # type: ignore[arg-type]
        trained,
        CriticSettings(warmup_steps=0, cut_off="bootstrap"),
        scale=2.0,
        shift=0.3,
    )
    dice = random.Random(5)  # noqa: S311
    asked = [[dice.randrange(60, 90) for _ in range(length)] for length in prompt_lengths]
    prompts = [prompt for prompt in asked for _ in range(siblings)]
    completions = [[dice.randrange(60, 90) for _ in range(dice.randrange(1, 12))] for _ in prompts]
    rewards = torch.tensor([dice.gauss(0, 1) for _ in prompts], dtype=torch.float64)
    ended = torch.tensor([dice.random() < 0.5 for _ in prompts])
    return Case(policy, critic, value_model, prompts, completions, rewards, ended, siblings, Accelerator(cpu=True))
