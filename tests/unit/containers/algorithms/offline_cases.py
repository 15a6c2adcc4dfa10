"""Examples, a policy and cuts for the tests of a step on given completions."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from containers.algorithms.offline_step import Example, Objective, OfflineStep
from containers.algorithms.reference_logps import computed_reference, with_reference
from containers.contracts.configs.parts.preference_losses import PREFERENCE_LOSSES, PreferenceLoss
from containers.packing.logps import add_logps, causal_of, completion_packs
from containers.packing.padded import padded_rows_of

BETA = 0.5


def cuts(width: int) -> dict[str, Callable[..., Any]]:
    """One pack, several, one for each prompt (its completions are longer than the budget), and padded rows."""
    packs = partial(completion_packs, num_together=width)
    return {
        "one pack": partial(packs, max_tokens=10_000),
        "2 packs": partial(packs, max_tokens=140),
        "5 packs": partial(packs, max_tokens=10),
        "padded rows": partial(padded_rows_of, at_a_time=2 * width),
    }


def examples(width: int, *, number: int = 6, longest_prompt: int = 20) -> list[Example]:
    """Prompts of 1 to 20 tokens with completions of 1 to 24; one pair has equal completions, two have equal prompts."""
    dice = random.Random(5)  # noqa: S311

    def ids(count: int) -> list[int]:
        return [dice.randrange(60, 90) for _ in range(count)]

    made = [
        Example(
            prompt=ids(dice.randint(1, longest_prompt)),
            completions=tuple(ids(dice.randint(1, 24)) for _ in range(width)),
            mismatched=tuple(ids(dice.randint(1, 24)) for _ in range(width)),
        )
        for _ in range(number)
    ]
    made[2] = replace(made[2], completions=(made[2].completions[0],) * width)
    made[3] = replace(made[3], prompt=made[1].prompt)
    return made


def policy_of(start: Path) -> Any:
    """A policy with adapters that are not zero, so that it is another model than its reference."""
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    torch.manual_seed(0)
    model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(start), adapters)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn_like(weight)
    return model


def gradient_of(model: Any) -> Tensor:
    parts = [weight.grad.flatten() for _, weight in sorted(model.named_parameters()) if weight.grad is not None]
    return torch.cat(parts).clone()


def ours(
    start: Path, objective: Objective, rows: Sequence[Example], *, cut: Callable[..., Any]
) -> tuple[float, Tensor, dict[str, float]]:
    """Loss, gradient and figures of one step of ours; the reference is the policy without its adapters."""
    model = policy_of(start)
    add_logps(causal_of(model), temperature=1.0)
    reference = computed_reference(model, rows, cut=cut, dtype=torch.float32)
    step = OfflineStep(accelerator=Accelerator(cpu=True), objective=objective, cut=cut)
    loss, figures = step.update(model.train(), with_reference(rows, reference))
    return float(loss), gradient_of(model), figures


def without_mismatched(rows: Sequence[Example]) -> list[Example]:
    return [replace(row, mismatched=()) for row in rows]


def lora() -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")


def parts_of(name: str, changes: dict[str, Any]) -> PreferenceLoss:
    return PREFERENCE_LOSSES[name.split()[0]].model_copy(update={"beta": BETA, **changes})
