"""One update of a policy: from the completions of all ranks to gradients, pack by pack.

The loss is the sum over tokens of weight × objective. Whatever couples completions is known before the first backward:
weights come from the lengths of the whole step, advantages from its rewards. Only one thing may come later. With the
KL in the reward, the advantages of a prompt's completions need the policy's log-probabilities; if all of them lie in
one pack, its own forward gives them, and the policy need not be computed twice.

Which completions count: one that does not take part has weight 0, and is in no denominator, no mean and no deviation.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from containers.contracts.configs.parts.policy_algorithms import OBJECTIVES, PolicyAlgorithm
from containers.contracts.configs.train_policy import SamplingCorrection
from containers.critics.critic import Critic
from containers.distributed.ranks import highest_of_ranks, of_all_ranks
from containers.distributed.sums import DeviceSums
from containers.harness.errors import DivergedError
from containers.losses.advantages import GROUP_ADVANTAGES, batch_spread
from containers.losses.importance import importance_weights, sampling_kl
from containers.losses.ratios import KL_ESTIMATORS, RATIOS, TokenOwners, k1
from containers.losses.values import discounted
from containers.losses.weights import WEIGHTS
from containers.models.offloading import present
from containers.packing.attention import packed
from containers.packing.logps import CompletionPack, Cut, Pack, causal_of
from containers.rollouts.rollout import StepBatch
from containers.rollouts.sampling_check import SUMS, SURPRISE, add_surprise

# The sum by which a log-probability is noticed that is not finite.
_LOGPS = "logps"


@dataclass(frozen=True)
class PolicyStep:
    """Computes the updates of one training.

    Attributes:
        method: the algorithm with all of its parts.
        num_generations: completions of each prompt (K).
        longest: maximum tokens of a completion.
        updates_per_rollout: updates that use completions which were written together.
        cut: makes packs, or padded rows, of a rank's prompts and completions.
        reference: the reference policy; None: the policy without its adapters.
        aux_weight: weight of the loss by which experts are balanced.
        critic: gives the values of advantages that need some.
        correction: of rows that an engine wrote.
        divides: whether the ranks divide the policy. Then each pack exchanges gradients, and all ranks compute the same
            number of packs.
    """

    accelerator: Accelerator
    method: PolicyAlgorithm
    num_generations: int
    longest: int
    updates_per_rollout: int
    cut: Cut
    reference: Any = None
    aux_weight: float = 0.0
    critic: Critic | None = None
    correction: SamplingCorrection = SamplingCorrection()  # noqa: RUF009 - it is frozen
    divides: bool = False

    @torch.no_grad()
    def prepare(self, model: Any, batch: StepBatch) -> dict[str, float]:
        """Fill in log-probabilities and advantages that an update must know before its first backward.

        Returns:
            The sums of `sampling_check.SURPRISE` over this rank's rows; 0 where the update's own forward gives them.
        """
        method, packs = self.method, self.cut(batch.prompts, batch.completions)
        policy = self.accelerator.unwrap_model(model)
        surprise = DeviceSums(SURPRISE)
        batch.old = [None] * len(batch.completions)
        batch.advantages = [None] * len(batch.completions)
        if method.beta:
            has_own = self.reference is not None
            with present(self.reference) if has_own else policy.disable_adapter():
                batch.reference = _whole(self._logps(self.reference if has_own else policy, packs, batch))
        waits = self._rows_that_wait(packs, batch)
        early = [pack for pack in packs if not all(waits[row] for row in pack.rows)]
        if self.updates_per_rollout > 1 or (method.beta and method.kl_place != "loss"):
            known = self._logps(policy, early, batch, surprise=surprise)
            batch.old = [None if waits[row] else logps for row, logps in enumerate(known)]
        if self.critic is not None and self.updates_per_rollout > 1:
            self.critic.expect(batch, packs, method)
        self._fill_advantages(batch, waits)
        return dict.fromkeys(SURPRISE, 0.0) if any(waits) else surprise.numbers()

    def update(self, model: Any, batch: StepBatch) -> tuple[Tensor, dict[str, float]]:
        """Compute forward and backward of each pack; ranks exchange gradients with the last one.

        Returns:
            The loss, whose mean over the ranks is that of the step; and sums over this rank's tokens: `tokens`, `kl`
            (nats), `entropy` (nats), `ratio`, `limited` (tokens), and those of `sampling_check`. All are 0 while the
            critic warms up, since the policy does not move then.

        Raises:
            DivergedError: a log-probability is not finite.
        """
        packs, num_own = self._packs(batch)
        weights = _weights(self.method, batch, longest=self.longest)[batch.own]
        total = torch.zeros((), device=self.accelerator.device)
        sums = DeviceSums(("tokens", "kl", "entropy", "ratio", "limited", *SUMS))
        if self.critic is not None and not self._learnt(self.critic, batch, packs):
            return total, sums.numbers()
        with self._computing(model, packs):
            for place, pack in enumerate(packs):
                syncs = self.divides or place == len(packs) - 1
                with nullcontext() if syncs else self.accelerator.no_sync(model):
                    if place < num_own:
                        loss = self._pack_loss(model, batch, pack, weights, sums)
                    else:
                        loss = self._nothing(model, pack)
                    self.accelerator.backward(loss)
                total += loss.detach()
        numbers = sums.numbers()
        _demand_finite(numbers.pop(_LOGPS))
        return total, numbers

    def _packs(self, batch: StepBatch) -> tuple[Sequence[Pack], int]:
        """Return the packs, and how many are of this batch; if ranks divide the policy, the rest keep them even."""
        packs = [*self.cut(batch.prompts, batch.completions)]
        num_own = len(packs)
        if self.divides:
            packs += [*self.cut([[0]], [[0]])] * (highest_of_ranks(num_own) - num_own)
        return packs, num_own

    def try_pack(self, model: Any, pack: Pack) -> None:
        """Compute forward and backward of a pack that is in no batch; its gradients are 0."""
        with self._computing(model, [pack]):
            self.accelerator.backward(self._nothing(model, pack))

    def _nothing(self, model: Any, pack: Pack) -> Tensor:
        with self.accelerator.autocast():
            nothing: Tensor = 0.0 * model(pack=pack)[0].sum()
        return nothing

    def _learnt(self, critic: Critic, batch: StepBatch, packs: Sequence[Pack]) -> bool:
        """Update the critic, whose own forward gives the values that are not known; whether the policy may move."""
        is_new = not batch.values
        critic.learn(batch, packs, self.method)
        if is_new:
            self._fill_advantages(batch, ())
        return critic.is_ready

    def _pack_loss(self, model: Any, batch: StepBatch, pack: Pack, weights: Tensor, sums: DeviceSums) -> Tensor:
        """Return the loss of one pack, times the number of ranks, since ranks take the mean of their gradients."""
        method, ranks = self.method, self.accelerator.num_processes
        with self.accelerator.autocast():
            logps, entropies, aux = model(pack=pack)
        now, device = logps.detach(), logps.device
        owners = TokenOwners.of_lengths(pack.lengths, device)
        old = torch.cat(
            [_or(batch.old[row], own).to(device) for row, own in zip(pack.rows, pack.by_completion(now), strict=True)]
        )
        reference = torch.cat([batch.reference[row] for row in pack.rows]).to(device) if method.beta else now
        self._fill_late(batch, pack, owners.sums(k1(now, reference)))
        advantages = torch.cat(
            [_found(batch.advantages[row]).expand(length) for row, length in zip(pack.rows, pack.lengths, strict=True)]
        )
        ratio = RATIOS[method.ratio_over](logps, old, owners)
        objective, is_limited = OBJECTIVES[method.objective](logps, ratio, advantages.to(device), method)
        if batch.sampling:
            objective = objective * self._correction(batch, pack, old, owners, sums)
        if method.beta and method.kl_place == "loss":
            objective = objective + method.beta * KL_ESTIMATORS[method.kl_estimator](logps, reference)
        if method.entropy_weight:
            objective = objective - method.entropy_weight * entropies
        sums.add("tokens", len(logps))
        figures = {_LOGPS: now, "kl": k1(now, reference), "entropy": entropies, "ratio": ratio, "limited": is_limited}
        for name, values in figures.items():
            sums.add(name, values)
        add_surprise(sums, now, entropies.detach(), owners)
        loss: Tensor = (weights[list(pack.rows)].to(device)[owners.of] * objective).sum() * ranks
        return loss if aux is None else loss + self.aux_weight * aux * len(pack.rows) / len(batch.completions)

    def _correction(self, batch: StepBatch, pack: Pack, old: Tensor, owners: TokenOwners, sums: DeviceSums) -> Tensor:
        """Return [N] weights of the pack's tokens, which an engine drew from almost the policy that they count as."""
        sampling = torch.cat([batch.sampling[row] for row in pack.rows]).to(old)
        weights = importance_weights(old, sampling, owners, over=self.correction.over, cap=self.correction.cap)
        sums.add("sampling_kl", sampling_kl(old, sampling))
        sums.add("weights", weights)
        sums.add("weight_squares", weights.square())
        sums.add("weighted", len(weights))
        return weights

    def _rows_that_wait(self, packs: Sequence[Pack], batch: StepBatch) -> list[bool]:
        """Return for each row whether the update's own forward gives its KL: all of its siblings are in one pack."""
        waits = [False] * len(batch.completions)
        if self.updates_per_rollout > 1 or self.method.kl_place != "reward" or not self.method.beta:
            return waits
        for pack in packs:
            prompts = [(batch.first_row + row) // self.num_generations for row in pack.rows]
            for row, prompt in zip(pack.rows, prompts, strict=True):
                waits[row] = prompts.count(prompt) == self.num_generations
        return waits

    def _fill_advantages(self, batch: StepBatch, waits: Sequence[bool]) -> None:
        """Fill in the advantages of all rows that do not wait."""
        method = self.method
        if method.advantage == "batch_spread":
            batch.advantages = list(self._token_advantages(batch))
            return
        if method.advantage == "gae":
            if batch.values:
                of_rows = zip(batch.returns, batch.values, strict=True)
                batch.advantages = list(self._normalised(batch, torch.cat([came - value for came, value in of_rows])))
            return
        rewards = batch.rewards
        if method.beta and method.kl_place == "reward":
            pairs = zip(batch.old, batch.reference, waits, strict=True)
            own_kl = DeviceSums()
            for row, (old, reference, late) in enumerate(pairs):
                own_kl.add(str(row), 0.0 if late else k1(_found(old), reference))
            own = [*own_kl.numbers().values()]
            rewards = rewards - method.beta * torch.tensor(list(chain.from_iterable(of_all_ranks(own)))).to(rewards)
        values = self._of_groups(batch, rewards, torch.arange(len(rewards)))[batch.own]
        batch.advantages = [None if late else value for late, value in zip(waits, values[:, None], strict=True)]

    def _fill_late(self, batch: StepBatch, pack: Pack, kl: Tensor) -> None:
        """Fill in the advantages of a pack's rows that waited for their KL, [rows of the pack]."""
        found = sorted((row, place) for place, row in enumerate(pack.rows) if batch.advantages[row] is None)
        if not found:
            return
        rows = torch.tensor([row + batch.first_row for row, _ in found])
        own_kl = kl[torch.tensor([place for _, place in found], device=kl.device)].to(batch.rewards)
        rewards = batch.rewards[rows] - self.method.beta * own_kl
        values = self._of_groups(batch, rewards, rows)
        for (row, _), value in zip(found, values[:, None], strict=True):
            batch.advantages[row] = value

    def _of_groups(self, batch: StepBatch, rewards: Tensor, rows: Tensor) -> Tensor:
        """Return the advantages of whole groups of K rows each, from the rewards of these rows of all ranks."""
        siblings, more = self.num_generations, {}
        if self.method.advantage == "group_spread":
            more = {"rounding": batch.rounding, "divides": batch.divides[rows[::siblings] // siblings]}
        shape = (-1, siblings)
        values = GROUP_ADVANTAGES[self.method.advantage](
            rewards.view(shape), batch.takes_part[rows].view(shape), **more
        )
        return values.flatten().float()

    def _token_advantages(self, batch: StepBatch) -> Sequence[Tensor]:
        """Return for each row one advantage a token: reward less the KL from there on, normalised over the rollout."""
        method, lengths = self.method, batch.lengths[batch.own]
        values = torch.repeat_interleave(batch.rewards[batch.own], lengths)
        if method.beta and method.kl_place == "token_reward":
            kl = torch.cat([k1(_found(old), ref) for old, ref in zip(batch.old, batch.reference, strict=True)])
            values = values - method.beta * discounted(kl, lengths, discount=1.0).to(values)
        return self._normalised(batch, values)

    def _normalised(self, batch: StepBatch, values: Tensor) -> Sequence[Tensor]:
        """Return for each row [T] its values less the mean of all ranks' tokens, divided by their deviation."""
        lengths = batch.lengths[batch.own]
        counts = torch.repeat_interleave(batch.takes_part[batch.own], lengths)
        everywhere = of_all_ranks((values, counts))
        whole, all_counts = (torch.cat(parts) for parts in zip(*everywhere, strict=True))
        found = torch.zeros_like(whole)
        if all_counts.any():
            found[all_counts] = batch_spread(whole[all_counts])
        start = int(batch.lengths[: batch.first_row].sum())
        own = found[start : start + len(values)].float()
        return torch.split(own, lengths.tolist())

    def _logps(
        self, model: Any, packs: Sequence[Pack], batch: StepBatch, *, surprise: DeviceSums | None = None
    ) -> list[Tensor | None]:
        """Return log-probabilities of each row of these packs, without gradient; None for other rows.

        Args:
            surprise: sums that those of these rows are added to.
        """
        found: list[Tensor | None] = [None] * len(batch.completions)
        sums = DeviceSums((_LOGPS,))
        with self._computing(model, packs), self.accelerator.autocast():
            for pack in packs:
                logps, entropies, _aux = model(pack=pack)
                sums.add(_LOGPS, logps)
                if surprise is not None:
                    add_surprise(surprise, logps, entropies, TokenOwners.of_lengths(pack.lengths, logps.device))
                for row, own in zip(pack.rows, pack.by_completion(logps), strict=True):
                    found[row] = own
        _demand_finite(sums.numbers()[_LOGPS])
        return found

    def _computing(self, model: Any, packs: Sequence[Pack]) -> AbstractContextManager[Any]:
        is_packed = any(isinstance(pack, CompletionPack) for pack in packs)
        return packed(causal_of(self.accelerator.unwrap_model(model))) if is_packed else nullcontext()


def _weights(method: PolicyAlgorithm, batch: StepBatch, *, longest: int) -> Tensor:
    """Return [R] the weight of a token of each completion of the step; 0 for one that does not take part."""
    found = torch.zeros(len(batch.lengths))
    if batch.takes_part.any():
        found[batch.takes_part] = WEIGHTS[method.loss_weights](batch.lengths[batch.takes_part], longest)
    return found


def _demand_finite(total: float) -> None:
    if not -torch.inf < total < torch.inf:
        raise DivergedError(f"the policy's sum of log-probabilities is {total}")


def _whole(found: Sequence[Tensor | None]) -> list[Tensor]:
    return [_found(value) for value in found]


def _found(value: Tensor | None) -> Tensor:
    if value is None:
        raise AssertionError("A row is in no pack.")
    return value


def _or(value: Tensor | None, other: Tensor) -> Tensor:
    return other if value is None else value
