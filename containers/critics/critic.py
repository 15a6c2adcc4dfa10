"""The critic of PPO: it expects, at each token of a completion, the reward that is still to come.

It learns by gradients of its own, beside the policy's: the ranks add them up, and its optimizer and its weights are
its own too. So the policy's trainer need not know it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from transformers import PreTrainedModel

from containers.contracts.configs.parts.critic import CriticSettings
from containers.contracts.configs.parts.policy_algorithms import PolicyAlgorithm
from containers.distributed.ranks import of_all_ranks
from containers.formatting import percent
from containers.harness.errors import DivergedError
from containers.losses.ratios import KL_ESTIMATORS
from containers.losses.values import discounted, explained_variance, gae, value_error
from containers.losses.weights import by_token
from containers.packing.attention import packed
from containers.packing.logps import CompletionPack, Pack
from containers.rollouts.rollout import StepBatch

CRITIC_FILE = "critic.pt"


@dataclass
class Critic:
    """Expects rewards, and learns from those that came.

    Attributes:
        model: whose attention computes packs.
        backbone: gives the states.
        head: [1, H] in float32, what turns a state into a score.
        trained: the parameters that learn, by name.
        settings: as configured.
        scale: a value is scale × score + shift: the reward that the score becomes.
        learns_states: false where the states are the policy's, and only the head learns.
        note: takes a sentence for the log.
        maximum_norm: of the gradient.
        steps: updates so far.
        is_ready: whether the policy may move.
        explained: share of the variance of rewards, in the newest rollout.
        curves: of the newest step, until they are taken.
    """

    model: PreTrainedModel
    backbone: Any
    head: nn.Parameter
    trained: dict[str, nn.Parameter]
    settings: CriticSettings
    scale: float = 1.0
    shift: float = 0.0
    learns_states: bool = True
    note: Callable[[str], None] = print
    maximum_norm: float = 1.0
    steps: int = 0
    is_ready: bool = False
    explained: float = 0.0
    curves: dict[str, float] = field(default_factory=dict)
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        parameters = list(self.trained.values())
        self.optimizer = torch.optim.AdamW(parameters, lr=self.settings.learning_rate, weight_decay=0.0)
        self.is_ready = not self.settings.warmup_steps

    @torch.no_grad()
    def expect(self, batch: StepBatch, packs: Sequence[Pack], method: PolicyAlgorithm) -> None:
        """Fill in the values and returns of this rank's rows."""
        self._clear(batch)
        with self._computing(packs):
            for pack in packs:
                self._take(batch, pack, *self._values(pack), method)
        self.curves = self._judge(batch, method)

    def learn(self, batch: StepBatch, packs: Sequence[Pack], method: PolicyAlgorithm) -> None:
        """Update the critic by one minibatch; fill in values and returns that are not known yet.

        Raises:
            DivergedError: a value is not finite.
        """
        is_new = not batch.values
        if is_new:
            self._clear(batch)
        weights = _weights(batch)
        sums = dict.fromkeys(("tokens", "error", "clipped", "value", "return"), 0.0)
        self.optimizer.zero_grad()
        with self._computing(packs):
            for pack in packs:
                values, lasts = self._values(pack)
                if is_new:
                    self._take(batch, pack, values.detach(), lasts.detach(), method)
                self._backward(batch, pack, values, weights, sums)
        if is_new:
            self.curves |= self._judge(batch, method)
        norm = self._step()
        totals = _added(sums)
        tokens = max(totals["tokens"], 1.0)
        self.curves |= {
            "critic_loss": totals["error"] / tokens,
            "critic_clipped_fraction": totals["clipped"] / tokens,
            "critic_value": totals["value"] / tokens,
            "critic_return": totals["return"] / tokens,
            "critic_grad_norm": norm,
        }

    def take_curves(self) -> dict[str, float]:
        """Return the curves since the last call."""
        found, self.curves = self.curves, {}
        return found

    def _judge(self, batch: StepBatch, method: PolicyAlgorithm) -> dict[str, float]:
        """Measure on new completions how much of what came was expected; decide whether the policy may move.

        Args:
            batch: with values that no update has seen, of this rank's rows.
        """
        rows = [row for row, counts in enumerate(batch.takes_part[batch.own].tolist()) if counts]
        rewards, values = torch.zeros(0), torch.zeros(0)
        if rows:
            rewards = torch.cat([token_rewards(batch, row, method) for row in rows])
            values = torch.cat([batch.values[row] for row in rows])
        lengths = torch.tensor([len(batch.completions[row]) for row in rows], dtype=torch.long)
        came = discounted(rewards, lengths, discount=method.gae_discount)
        values, came = (torch.cat(parts) for parts in zip(*of_all_ranks((values, came)), strict=True))
        self.explained = explained_variance(values, came)
        if not self.is_ready:
            self._decide()
        return {"explained_variance": self.explained}

    def _decide(self) -> None:
        least, most = self.settings.minimum_explained_variance, self.settings.warmup_steps
        shown = f"explains {percent(self.explained)} of the variance of rewards"
        if self.explained >= least:
            self.is_ready = True
            self.note(f"The critic {shown} after {self.steps:,} steps, so the policy begins to move.")
        elif self.steps >= most:
            self.is_ready = True
            self.note(
                f"Warning: the critic {shown} after {self.steps:,} steps, less than {percent(least)} "
                "(train_policy.critic.minimum_explained_variance), and warmup_steps are over: the policy begins to "
                "move by advantages that are mostly noise. Give it more warmup_steps, or a higher learning_rate."
            )

    def _values(self, pack: Pack) -> tuple[Tensor, Tensor]:
        """Return [N] values at the pack's predicting tokens, and [C] after each completion's last token."""
        device = self.head.device
        with nullcontext() if self.learns_states else torch.no_grad():
            states, lasts = pack.states(self.backbone, device)
        found = [self.scale * (part.float() @ self.head.T).squeeze(-1) + self.shift for part in (states, lasts)]
        if not torch.isfinite(found[0].detach().sum()):
            raise DivergedError("the critic's values are not finite; lower train_policy.critic.learning_rate")
        return found[0], found[1]

    def _take(self, batch: StepBatch, pack: Pack, values: Tensor, lasts: Tensor, method: PolicyAlgorithm) -> None:
        """Fill in values and returns of the pack's rows, on the CPU."""
        values, lasts = values.cpu(), lasts.cpu()
        rewards = torch.cat([token_rewards(batch, row, method) for row in pack.rows])
        if self.settings.cut_off == "bootstrap":
            lasts = lasts.masked_fill(batch.ended[batch.own][list(pack.rows)], 0.0)
        advantages = gae(
            rewards,
            values,
            torch.tensor(pack.lengths),
            discount=method.gae_discount,
            trace=method.gae_lambda,
            last=lasts if self.settings.cut_off == "bootstrap" else None,
        )
        for row, own, returns in zip(
            pack.rows, pack.by_completion(values), pack.by_completion(advantages + values), strict=True
        ):
            batch.values[row], batch.returns[row] = own, returns

    def _clear(self, batch: StepBatch) -> None:
        batch.values, batch.returns = ([torch.empty(0)] * len(batch.completions) for _ in range(2))
        self.curves = {}

    def _backward(self, batch: StepBatch, pack: Pack, values: Tensor, weights: Tensor, sums: dict[str, float]) -> None:
        device = values.device
        old, returns = (
            torch.cat([known[row].to(device) for row in pack.rows]) for known in (batch.values, batch.returns)
        )
        of = torch.repeat_interleave(torch.arange(len(pack.rows)), torch.tensor(pack.lengths))
        weight = weights[list(pack.rows)][of].to(device)
        error, is_clipped = value_error(values, old, returns, clip=self.settings.value_clip)
        (weight * error).sum().backward()  # type: ignore[no-untyped-call]
        counts = weight > 0
        sums["tokens"] += float(counts.sum())
        sums["error"] += float(error.detach()[counts].sum())
        sums["clipped"] += float(is_clipped[counts].sum())
        sums["value"] += float(values.detach()[counts].sum())
        sums["return"] += float(returns[counts].sum())

    def _step(self) -> float:
        """Add up the ranks' gradients and update; return the gradient's norm."""
        parameters = list(self.trained.values())
        if distributed.is_initialized():
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                distributed.all_reduce(parameter.grad)
        norm = float(nn.utils.clip_grad_norm_(parameters, self.maximum_norm))
        self.optimizer.step()
        self.steps += 1
        return norm

    def _computing(self, packs: Sequence[Pack]) -> AbstractContextManager[Any]:
        return packed(self.model) if any(isinstance(pack, CompletionPack) for pack in packs) else nullcontext()

    def save(self, folder: Path) -> None:
        """Write what a resumed training needs into a checkpoint."""
        state = {
            "weights": {name: weight.detach().cpu() for name, weight in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "is_ready": self.is_ready,
            "explained": self.explained,
        }
        torch.save(state, folder / CRITIC_FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Go on from that checkpoint."""
        state = torch.load(folder / CRITIC_FILE, map_location="cpu", weights_only=True)
        for name, weight in self.trained.items():
            weight.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.is_ready, self.explained = state["steps"], state["is_ready"], state["explained"]


def token_rewards(batch: StepBatch, row: int, method: PolicyAlgorithm) -> Tensor:
    """Return [T] the reward of each token of a row of this rank: the KL's share, and at the last one the completion's.

    In float32, on the CPU.
    """
    rewards = torch.zeros(len(batch.completions[row]))
    if method.beta and method.kl_place == "token_reward":
        old = batch.old[row]
        if old is None:
            raise AssertionError("The KL needs log-probabilities that were not computed.")
        rewards -= method.beta * KL_ESTIMATORS[method.kl_estimator](old, batch.reference[row]).float().cpu()
    rewards[-1] += float(batch.rewards[batch.first_row + row])
    return rewards


def _weights(batch: StepBatch) -> Tensor:
    """Return [B] the weight of a token of this rank's rows: each token of the minibatch that takes part is alike."""
    found = torch.zeros(len(batch.lengths))
    if batch.takes_part.any():
        found[batch.takes_part] = by_token(batch.lengths[batch.takes_part], 0)
    return found[batch.own]


def _added(sums: dict[str, float]) -> dict[str, float]:
    parts = of_all_ranks(sums)
    return {name: sum(part[name] for part in parts) for name in sums}
