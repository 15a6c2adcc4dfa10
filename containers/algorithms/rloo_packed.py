"""RLOOTrainer over packed completions: each real token is computed once, a prompt once for all of its completions.

TRL computes a generated batch three times as padded rows: the policy's pass for the KL in the reward, the reference's
pass, and the policy's pass for the loss. Here all three use packs, and the first pass is skipped if the policy cannot
have changed before the third. TRL then gets a KL of 0. The pass for the loss gives the policy's log-probabilities, and
the KL is then subtracted from the advantages, in which it is linear. This needs all completions of a prompt in one
pack. Completions that are split, over two ranks or for lack of space, still take three passes.

The trainer gets a step's completions as one batch. It runs forward and backward pack by pack, and weights the losses so
that their sum is the mean over the step's completions. The figures are RLOOTrainer's own: its loss is computed again
from the known log-probabilities, and the sum over the packs is compared with it.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from containers.algorithms.rloo import PolicyTrainer
from containers.harness.errors import StageError
from containers.packing.attention import packed
from containers.packing.logps import CompletionPack, add_packed_logps, completion_packs, without_padding

# The packs' losses are summed in another order than RLOOTrainer's.
_LOSS_TOLERANCE = 1e-3


class PackedPolicyTrainer(PolicyTrainer):
    """PolicyTrainer with log-probabilities from packs; a batch is all completions of a rank in a step.

    Args:
        pack_tokens: maximum tokens of a pack.

    Raises:
        ValueError: batches are accumulated.
    """

    def __init__(self, *, pack_tokens: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self.args.gradient_accumulation_steps != 1 or self.args.steps_per_generation != 1:
            raise ValueError("Packs are cut from whole batches: nothing may be accumulated.")
        self._pack_tokens = pack_tokens
        for model in (self.model, self.ref_model):
            if model is not None:
                add_packed_logps(self._causal(model), temperature=self.temperature)
        # [B, C] log-probabilities and entropies that RLOOTrainer gets instead of a forward.
        self._known: tuple[Tensor, Tensor] | None = None
        self._num_passes = 0
        self._late = torch.empty(0, dtype=torch.bool)
        self._reference: Tensor | None = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._num_passes, self._reference = 0, None
        batch = super()._generate_and_score_completions(inputs)
        # RLOOTrainer shuffles the batch; these restore its order, so that every pass makes the same packs.
        batch["row"] = torch.arange(len(inputs))
        batch["is_late"] = self._late
        if self._reference is not None:
            batch["reference_logps"] = self._reference
        return batch

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor | None, None]:
        """Return [B, C] log-probabilities, 0 where there is no token; 0 for late rows, of policy and reference."""
        if self._known is not None:
            return *self._known, None
        packs = self._packs(input_ids, attention_mask, logits_to_keep)
        self._num_passes += 1
        if self._num_passes == 1:
            self._late = self._rows_that_wait(packs, num_rows=len(input_ids))
            packs = [pack for pack in packs if not self._late[list(pack.rows)].all()]
        found = torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device)
        with packed(self._causal(model)), self.accelerator.autocast():
            for pack in packs:
                logps, _entropies = model(pack=pack)
                _put(found, pack, logps)
        if self._num_passes == 2:
            self._reference = found
        return found.masked_fill(self._late.to(found.device)[:, None], 0.0), None, None

    def _rows_that_wait(self, packs: Sequence[CompletionPack], *, num_rows: int) -> Tensor:
        """Return [B], true where the loss pass gives the policy's log-probabilities: all siblings are in one pack."""
        late = torch.zeros(num_rows, dtype=torch.bool)
        if self.num_iterations > 1:
            return late
        prompts = self._prompt_of(num_rows)
        for pack in packs:
            rows = torch.tensor(pack.rows)
            found, counts = torch.unique(prompts[rows], return_counts=True)
            late[rows] = torch.isin(prompts[rows], found[counts == self.num_generations])
        return late

    def _prompt_of(self, num_rows: int) -> Tensor:
        """Return [B] number of each row's prompt among those of all ranks."""
        start: int = self.accelerator.process_index * num_rows
        prompts: Tensor = torch.arange(start, start + num_rows) // self.num_generations
        return prompts

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Run forward and backward of each pack, return RLOOTrainer's loss; gradients are exchanged with the last."""
        order = inputs["row"].argsort()
        batch = {name: value[order.to(value.device)] for name, value in inputs.items()}
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        packs = self._packs(ids, mask, batch["completion_ids"].shape[1])
        known_logps, known_entropies = (torch.zeros_like(batch["completion_ids"], dtype=torch.float) for _ in range(2))
        late_kl, total = torch.zeros((), device=ids.device), 0.0
        with packed(self._causal(model)):
            for pack in packs:
                with nullcontext() if pack is packs[-1] else self.accelerator.no_sync(model):
                    with self.accelerator.autocast():
                        logps, entropies = model(pack=pack)
                    _put(known_logps, pack, logps.detach())
                    _put(known_entropies, pack, entropies.detach())
                    late_kl += self._settle(batch, pack, known_logps)
                    sums = torch.stack([part.sum() for part in pack.by_completion(logps)])
                    loss = self._losses(batch, pack, sums).sum() / len(ids)
                    self.accelerator.backward(loss / self.current_gradient_accumulation_steps)
                total += float(loss.detach())
        self._finish_figures(batch, late_kl)
        whole = self._whole_loss(model, batch, known_logps, known_entropies)
        if abs(float(whole) - total) > _LOSS_TOLERANCE * max(1.0, abs(total)):
            raise StageError(
                f"The packs' loss {total:.6g} is not RLOOTrainer's {float(whole):.6g} on the same log-probabilities."
            )
        # The gradients are computed already; the Trainer's backward on this tensor changes nothing.
        return whole.requires_grad_()

    def _settle(self, batch: dict[str, Any], pack: CompletionPack, logps: Tensor) -> Tensor:
        """Fill in `old_logps`, and the KL in `advantages`, of a pack's late rows; return the sum of their KL.

        With K siblings, leave-one-out subtracts from each advantage beta × (its KL − the mean KL of its siblings), that
        is beta × K / (K − 1) × (its KL − the mean of all K).
        """
        rows = torch.tensor(sorted(row for row in pack.rows if batch["is_late"][row]), device=logps.device)
        if not len(rows):
            return torch.zeros((), device=logps.device)
        batch["old_logps"][rows] = logps[rows].sum(dim=1)
        if self.beta == 0.0:
            return torch.zeros((), device=logps.device)
        kl = (logps[rows] - batch["reference_logps"][rows]).sum(dim=1)
        siblings = kl.view(-1, self.num_generations)
        apart = siblings - siblings.mean(dim=1, keepdim=True)
        charged = self.beta * self.num_generations / (self.num_generations - 1) * apart
        batch["advantages"][rows] -= charged.flatten()
        summed: Tensor = kl.sum()
        return summed

    def _losses(self, batch: dict[str, Any], pack: CompletionPack, logps: Tensor) -> Tensor:
        """Return the loss of each completion of a pack, as in RLOOTrainer; `logps` is summed over its tokens."""
        rows = torch.tensor(pack.rows, device=logps.device)
        advantages: Tensor = batch["advantages"][rows]
        ratio = torch.exp(logps - batch["old_logps"][rows])
        clipped = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)
        return -torch.min(ratio * advantages, clipped * advantages)

    def _finish_figures(self, batch: dict[str, Any], late_kl: Tensor) -> None:
        """Add the KL of late rows to the figures that RLOOTrainer made without it; the same on every rank."""
        if self.num_iterations > 1 or self.beta == 0.0:
            return
        metrics, num_tokens = self._metrics["train"], batch["completion_mask"].sum().float()
        kl, tokens = self.accelerator.reduce(torch.stack([late_kl, num_tokens]), reduction="sum").tolist()
        metrics["kl"][-1] += kl / max(tokens, 1.0)
        self._record_kl()
        advantages = self.accelerator.gather(batch["advantages"])
        self._logs["advantages"].extend(advantages.tolist())
        spread = advantages.view(-1, self.num_generations).std(dim=1)
        without_signal = torch.isclose(spread, torch.zeros_like(spread)).float().mean()
        metrics["frac_reward_zero_std"][-1] = without_signal.item()

    @torch.no_grad()
    def _whole_loss(self, model: Any, batch: dict[str, Any], logps: Tensor, entropies: Tensor) -> Tensor:
        """Return RLOOTrainer's own loss of the whole batch, and record its figures."""
        self._known = logps, entropies
        try:
            self._demand_finite("sum of log-probabilities", float(logps.sum()))
            return super()._compute_loss(model, batch)
        finally:
            self._known = None

    def _packs(self, input_ids: Tensor, attention_mask: Tensor, num_completion_places: int) -> list[CompletionPack]:
        prompts, completions = without_padding(input_ids, attention_mask, num_completion_places)
        return completion_packs(prompts, completions, max_tokens=self._pack_tokens)


def _put(found: Tensor, pack: CompletionPack, values: Tensor) -> None:
    """Write a pack's values, token by token, into the rows of the batch."""
    for row, part in zip(pack.rows, pack.by_completion(values), strict=True):
        found[row, : len(part)] = part
