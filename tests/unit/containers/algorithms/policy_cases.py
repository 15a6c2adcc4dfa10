"""TRL's trainer of each algorithm on given completions, and our step on the same model and tokens."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from containers.algorithms.policy_step import PolicyStep
from containers.contracts.configs.parts.policy_algorithms import PolicyAlgorithm
from containers.packing.logps import add_logps, causal_of, completion_packs
from containers.packing.padded import padded_rows_of
from containers.rollouts.rollout import StepBatch

K, LONGEST, TEMPERATURE = 4, 16, 0.7
PROMPTS = ["Hi", "Which colour is a frog, and which is a crow?", "What is red, round and sweet?", "Why?"]
# TRL's settings for each algorithm. Its KL in the loss is that of the papers without `use_bias_correction_kl`.
TRLS: dict[str, dict[str, Any]] = {
    "rloo": {},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
}
# How far the old log-probabilities lie from the policy's: nats a token, so that limits act on more than a tenth.
APART = {"rloo": 0.4, "gspo": 0.01, "cispo": 2.0}
TOLERANCE = 1e-5
# One pack; several, in which all completions of a prompt lie together; and some prompts cut over two packs.
CUTS: dict[str, Callable[..., Any]] = {
    "one pack": partial(completion_packs, max_tokens=1000),
    "2 packs": partial(completion_packs, max_tokens=200),
    "siblings apart": partial(completion_packs, max_tokens=80),
    "padded rows": partial(padded_rows_of, at_a_time=3),
}


def dealt(prompt_ids: list[list[int]], end: int) -> list[list[int]]:
    """Completions of 1 to 16 letters; some end, some were cut off."""
    found = []
    for place, prompt in enumerate(prompt_ids):
        dice = random.Random(f"{prompt} {place}")  # noqa: S311
        letters = [dice.randrange(60, 90) for _ in range(dice.randrange(1, LONGEST))]
        found.append([*letters, end] if dice.random() < 0.5 else letters)
    return found


def variety(completions: list[Any], **_: Any) -> list[float]:
    """Any reward that differs between completions."""
    return [len(set(reply[0]["content"])) / 4 for reply in completions]


class Peer:
    """TRL's trainer of an algorithm, whose completions are dealt, and its batch of one step."""

    def __init__(
        self, start: Path, folder: Path, algorithm: str, *, beta: float, lora: bool = True, **settings: Any
    ) -> None:
        kind, config = (RLOOTrainer, RLOOConfig) if algorithm == "rloo" else (GRPOTrainer, GRPOConfig)
        more = {} if algorithm == "rloo" else {"use_bias_correction_kl": False}
        adapters = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
        self.trainer = kind(
            model=AutoModelForCausalLM.from_pretrained(start),
            reward_funcs=variety,
            args=config(
                output_dir=str(folder),
                num_generations=K,
                per_device_train_batch_size=K * len(PROMPTS) // settings.get("steps_per_generation", 1),
                gradient_accumulation_steps=1,
                max_completion_length=LONGEST,
                temperature=TEMPERATURE,
                beta=beta,
                gradient_checkpointing=False,
                report_to=[],
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                save_strategy="no",
                shuffle_dataset=False,
                **TRLS[algorithm],
                **more,
                **settings,
            ),
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]),
            processing_class=AutoTokenizer.from_pretrained(start),
            peft_config=adapters if lora else None,
        )
        end = self.trainer.eos_token_ids[0]

        def generated(prompt_ids: Any, *_: Any, **__: Any) -> Any:
            found = dealt(prompt_ids, end)
            return found if algorithm == "rloo" else (found, None)

        self.trainer._generate_single_turn = generated
        self.model, self.algorithm = self.trainer.model, algorithm
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in self.model.parameters():
                if weight.requires_grad:
                    weight += 0.02 * torch.randn_like(weight)
        self.model.train()
        self.trainer.current_gradient_accumulation_steps = 1
        rows = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS for _ in range(K)]
        self.batch = self.trainer._generate_and_score_completions(rows)

    def noisy(self, apart: float) -> None:
        """Make the policy another one than that which wrote the completions."""
        batch = self.batch
        with torch.no_grad():
            logps = self.trainer._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].shape[1],
            )[0]
        noise = apart * torch.randn(logps.shape, generator=torch.Generator().manual_seed(7))
        self.old = (logps + noise) * batch["completion_mask"]
        if self.algorithm == "rloo":
            batch["old_logps"] = self.old.sum(dim=1)
        else:
            batch["old_per_token_logps"] = self.old

    def gradient(self) -> Tensor:
        self.model.zero_grad()
        self.trainer._compute_loss(self.model, self.batch).backward()
        return gradient_of(self.model)

    def tokens(self) -> tuple[list[list[int]], list[list[int]]]:
        """Prompts and completions without padding."""
        sides = ("prompt", "completion")
        prompts, completions = (
            [
                ids[mask.bool()].tolist()
                for ids, mask in zip(self.batch[f"{side}_ids"], self.batch[f"{side}_mask"], strict=True)
            ]
            for side in sides
        )
        return prompts, completions

    def step(self, method: PolicyAlgorithm, *, cut: Callable[..., Any], updates_per_rollout: int = 1) -> PolicyStep:
        add_logps(causal_of(self.model), temperature=TEMPERATURE)
        reference = self.trainer.ref_model
        if reference is not None:
            add_logps(causal_of(reference), temperature=TEMPERATURE)
        return PolicyStep(
            accelerator=self.trainer.accelerator,
            method=method,
            num_generations=K,
            longest=LONGEST,
            updates_per_rollout=updates_per_rollout,
            cut=cut,
            reference=reference,
        )

    def ours(self, method: PolicyAlgorithm, *, cut: Callable[..., Any]) -> tuple[Tensor, StepBatch, dict[str, float]]:
        """Our gradient, batch and sums of the same update on the same model."""
        step, batch = self.step(method, cut=cut), step_batch(*self.tokens(), self.trainer.processing_class)
        step.prepare(self.model, batch)
        if hasattr(self, "old"):
            batch.old = [old[: len(ids)] for old, ids in zip(self.old, batch.completions, strict=True)]
        self.model.zero_grad()
        _loss, sums = step.update(self.model, batch)
        return gradient_of(self.model), batch, sums


def step_batch(prompts: list[list[int]], completions: list[list[int]], tokenizer: Any) -> StepBatch:
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    rewards = variety([[{"content": text}] for text in texts])
    return StepBatch(
        prompts=prompts,
        completions=completions,
        first_row=0,
        rewards=torch.tensor(rewards, dtype=torch.float64),
        lengths=torch.tensor([len(ids) for ids in completions]),
        ended=torch.ones(len(completions), dtype=torch.bool),
        takes_part=torch.ones(len(completions), dtype=torch.bool),
        divides=torch.ones(len(completions) // K, dtype=torch.bool),
    )


def gradient_of(model: Any) -> Tensor:
    parts = [weight.grad.flatten() for _, weight in sorted(model.named_parameters()) if weight.grad is not None]
    return torch.cat(parts).clone()


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())
