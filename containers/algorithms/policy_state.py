"""The one record of what changes while a policy trains, beside weights and optimizer; each checkpoint has it.

Where the rollouts were, the completions that updates are still to be made from, the weight of the KL, what rewards are
normalised by, and the critic.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.algorithms.policy_rollouts import PolicyRollouts, Rewarded, Written
from containers.contracts.digests import write_atomically
from containers.distributed.ranks import is_first_rank
from containers.harness.errors import StageError
from containers.rewards.combine import CombinedRewards
from containers.rewards.policy_reward import Scored
from containers.rollouts.generate import Completion
from containers.rollouts.rollout import ROLLOUT_FILE, Rollout
from containers.training.checkpoints import CHECKPOINT_PREFIX, checkpoint_step

POLICY_STATE_FILE = "policy_state.json"


@dataclass
class PolicyStateCallback(TrainerCallback):  # type: ignore[misc]
    """Writes the record into each checkpoint.

    Attributes:
        trainer: its `rollouts` and `step` have the state.
    """

    trainer: Any = None

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the files, on the first rank; the others have the same state."""
        if is_first_rank():
            save_policy_state(self.trainer, Path(args.output_dir) / f"{CHECKPOINT_PREFIX}{state.global_step}")


def save_policy_state(trainer: Any, folder: Path) -> None:
    """Write the record as JSON; beside it the tensors of a rollout that is not used up, and the critic."""
    rollouts: PolicyRollouts = trainer.rollouts
    left = rollouts.current if rollouts.current is not None and not rollouts.current.is_used_up else None
    told = {
        "beta": trainer.step.method.beta,
        "position": rollouts.position,
        "steps_without_signal": rollouts.steps_without_signal,
        "reward": rollouts.reward.state(),
        "figures": rollouts.figures,
        "rows": [] if left is None else [_told(row) for row in rollouts.newest.rows],
    }
    write_atomically(folder / POLICY_STATE_FILE, json.dumps(told))
    if left is not None:
        left.save(folder / ROLLOUT_FILE)
    if trainer.step.critic is not None:
        trainer.step.critic.save(folder)


def restore_policy_state(trainer: Any, checkpoint: Path | None) -> None:
    """Go on where the training was when that checkpoint was written; without one, leave all as it is.

    Raises:
        StageError: its rollout is not of this training.
    """
    if checkpoint is None:
        return
    told = json.loads((checkpoint / POLICY_STATE_FILE).read_text(encoding="utf-8"))
    rollouts: PolicyRollouts = trainer.rollouts
    trainer.step = replace(trainer.step, method=trainer.step.method.model_copy(update={"beta": told["beta"]}))
    rollouts.position, rollouts.steps_without_signal = told["position"], told["steps_without_signal"]
    rollouts.reward.restore(told["reward"])
    rollouts.figures = told["figures"]
    if told["rows"]:
        _restore_rollout(rollouts, checkpoint, told["rows"])
    if trainer.step.critic is not None:
        trainer.step.critic.load(checkpoint)


def _restore_rollout(rollouts: PolicyRollouts, checkpoint: Path, rows: list[Mapping[str, Any]]) -> None:
    places = [row["prompt"] for row in rows]
    wanted = rollouts.rows_per_rank * rollouts.num_ranks
    if len(rows) != wanted or max(places) >= len(rollouts.prompts):
        raise StageError(
            f"The rollout in {checkpoint.name} has {len(rows)} completions of prompts up to {max(places)}; this "
            f"training has {wanted} of {len(rollouts.prompts)} prompts. Delete that checkpoint, and training goes on "
            "from the one before it."
        )
    prompts = [list(rollouts.prompts[place].token_ids) for place in places]
    file = checkpoint / ROLLOUT_FILE
    found = Rollout.load(file, prompts, rollouts.minibatches, rank=rollouts.rank, num_ranks=rollouts.num_ranks)
    if found.step + found.used != checkpoint_step(checkpoint):
        raise StageError(
            f"The rollout in {checkpoint.name} was written by the policy of step {found.step} ({found.policy}) and "
            f"used {found.used} times, so it belongs to step {found.step + found.used}. Delete that checkpoint, and "
            "training goes on from the one before it."
        )
    batch = found.batch
    written = tuple(
        Written(
            row["prompt"],
            Completion(
                tuple(prompt), tuple(ids), rollouts.tokenizer.decode(ids, skip_special_tokens=True), row["ended"]
            ),
            Scored(**{**row["scored"], "reasons": tuple(row["scored"]["reasons"])}),
            tuple(said.tolist()),
        )
        for row, prompt, ids, said in zip(
            rows, prompts, batch.completions, batch.sampling or [torch.empty(0)] * len(rows), strict=True
        )
    )
    rewards = CombinedRewards(batch.rewards, batch.takes_part, batch.divides)
    rollouts.newest = Rewarded(written, rewards, batch.rounding)
    rollouts.current = found


def _told(row: Written) -> dict[str, Any]:
    scored = row.scored
    return {
        "prompt": row.prompt,
        "ended": row.completion.ended,
        "scored": {
            "values": dict(scored.values),
            "rewards": dict(scored.rewards),
            "reasons": scored.reasons,
            "disagreement": scored.disagreement,
        },
    }
