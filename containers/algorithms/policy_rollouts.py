"""The completions of a step: draw prompts, let the policy complete them on all ranks, and have them rewarded."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.algorithms.policy_step import StepBatch
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.digests import write_atomically
from containers.distributed.ranks import is_first_rank, of_all_ranks
from containers.harness.errors import StageError
from containers.losses.advantages import has_spread
from containers.packing.logps import causal_of
from containers.rewards.base import PolicyReward
from containers.rollouts.engines import Writing
from containers.rollouts.generate import Completion, sampled_completions
from containers.rollouts.prompts import PolicyPrompt, PromptOrder
from containers.training.checkpoints import CHECKPOINT_PREFIX

ROLLOUTS_FILE = "rollouts.json"

# Rounds of generation after which a step that cannot be filled ends the training; verl has 10 too.
_MOST_ROUNDS = 10


@dataclass(frozen=True)
class Rewarded:
    """One completion with its reward.

    Attributes:
        prompt: place of its prompt among the training prompts.
    """

    prompt: int
    completion: Completion
    score: float
    reward: float


@dataclass
class PolicyRollouts:
    """Makes the completions of each step, the same number on each rank.

    Attributes:
        position: prompts drawn so far; all that a resumed training needs to know.
        rows_per_rank: completions of a rank in a step.
    """

    config: TrainPolicyConfig
    prompts: Sequence[PolicyPrompt]
    tokenizer: Any
    reward: PolicyReward
    writing: Writing
    order: PromptOrder | Sequence[int]
    rows_per_rank: int
    rank: int
    num_ranks: int
    position: int = 0
    newest: list[Rewarded] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompts and completions of the newest batch, each prompt once for each of its completions."""
        return sum(len(row.completion.prompt_ids) + len(row.completion.completion_ids) for row in self.newest)

    def next_batch(self, policy: Any) -> tuple[StepBatch, dict[str, float]]:
        """Return the next step's completions, the same on every rank but for the rank's own, and their figures.

        Raises:
            DivergedError: nothing can be sampled from the policy's logits, or a score is not finite.
            StageError: the step cannot be filled with prompts whose completions differ in their reward.
        """
        drawn = self._drawn(policy)
        self.newest, refill = drawn, self.config.method.refill
        rounds = 1
        if refill:
            kept = self._with_signal(drawn)
            while len(kept) < len(drawn):
                if rounds == _MOST_ROUNDS:
                    raise StageError(self._without_signal(kept, wanted=len(drawn)))
                rounds += 1
                kept += self._with_signal(self._drawn(policy))
            self.newest = kept[: len(drawn)]
        batch = self._batch(self.newest)
        figures = self._figures(self.newest, batch)
        if self.config.num_generations > 1:
            # Of what was drawn first, before any refill.
            figures["prompts_without_signal_fraction"] = self._share_without_signal(drawn)
        return batch, figures | ({"rounds": float(rounds)} if refill else {})

    def _drawn(self, policy: Any) -> list[Rewarded]:
        """Return rewarded completions of the next prompts, of all ranks."""
        siblings, first = self.config.num_generations, self.position
        rows = range(self.rank * self.rows_per_rank, (self.rank + 1) * self.rows_per_rank)
        places = [self.order[first + row // siblings] for row in rows]
        self.position += self.rows_per_rank * self.num_ranks // siblings
        completions = self.written(policy, places)
        asked = [self.prompts[place].conversation for place in places]
        scores, rewards = self.reward.of(asked, completions)
        own = [Rewarded(*row) for row in zip(places, completions, scores, rewards, strict=True)]
        return [row for part in of_all_ranks(own) for row in part]

    def written(self, policy: Any, places: Sequence[int]) -> list[Completion]:
        """Return one completion by the policy for each of these prompts."""
        with self.writing(policy):
            return sampled_completions(
                causal_of(policy),
                self.tokenizer,
                [self.prompts[place].token_ids for place in places],
                max_new_tokens=self.config.max_completion_length,
                temperature=self.config.temperature,
            )

    def _batch(self, rows: Sequence[Rewarded]) -> StepBatch:
        first = self.rank * self.rows_per_rank
        own = rows[first : first + self.rows_per_rank]
        return StepBatch(
            prompts=[list(row.completion.prompt_ids) for row in own],
            completions=[list(row.completion.completion_ids) for row in own],
            first_row=first,
            rewards=torch.tensor([row.reward for row in rows], dtype=torch.float64),
            lengths=torch.tensor([len(row.completion.completion_ids) for row in rows]),
            takes_part=torch.ones(len(rows), dtype=torch.bool),
            rounding=self._rounding(rows),
        )

    def _figures(self, rows: Sequence[Rewarded], batch: StepBatch) -> dict[str, float]:
        groups = batch.rewards.view(-1, self.config.num_generations)
        spread = groups.std(dim=1).mean() if self.config.num_generations > 1 else batch.rewards.std()
        return {
            "reward": float(batch.rewards.mean()),
            "reward_std": float(spread),
            "score": sum(row.score for row in rows) / len(rows),
            "completion_length": float(batch.lengths.float().mean()),
            "ended_fraction": sum(row.completion.ended for row in rows) / len(rows),
        }

    def _has_signal(self, rows: Sequence[Rewarded]) -> torch.Tensor:
        """Return [P] bool: the rewards of the prompt's completions differ."""
        rewards = torch.tensor([row.reward for row in rows], dtype=torch.float64).view(-1, self.config.num_generations)
        return has_spread(rewards, torch.ones_like(rewards, dtype=torch.bool), rounding=self._rounding(rows))

    def _rounding(self, rows: Sequence[Rewarded]) -> float:
        return self.reward.reward.rounding([row.score for row in rows])

    def _with_signal(self, rows: Sequence[Rewarded]) -> list[Rewarded]:
        siblings = self.config.num_generations
        found = self._has_signal(rows).tolist()
        return [row for place, row in enumerate(rows) if found[place // siblings]]

    def _share_without_signal(self, rows: Sequence[Rewarded]) -> float:
        return 1.0 - float(self._has_signal(rows).float().mean())

    def _without_signal(self, kept: Sequence[Rewarded], *, wanted: int) -> str:
        siblings = self.config.num_generations
        return (
            f"{_MOST_ROUNDS} rounds of {wanted // siblings} prompts gave {len(kept) // siblings} prompts whose "
            f"completions differ in their reward; a step needs {wanted // siblings} (train_policy.parts.refill of "
            f"{self.config.algorithm}). The rewards tell nothing about most prompts: they are too hard or too easy for "
            "this policy. Use other prompts, more num_generations, another reward, or set parts.refill to false."
        )


class RolloutsCallback(TrainerCallback):  # type: ignore[misc]
    """Writes into each checkpoint how many prompts were drawn."""

    def __init__(self, rollouts: PolicyRollouts) -> None:
        self._rollouts = rollouts

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the file, on the first rank."""
        if is_first_rank():
            file = Path(args.output_dir) / f"{CHECKPOINT_PREFIX}{state.global_step}" / ROLLOUTS_FILE
            write_atomically(file, json.dumps({"position": self._rollouts.position}))


def saved_position(checkpoint: Path | None) -> int:
    """Return how many prompts had been drawn when that checkpoint was written; 0 without one."""
    if checkpoint is None:
        return 0
    return int(json.loads((checkpoint / ROLLOUTS_FILE).read_text(encoding="utf-8"))["position"])
