"""Reward model training: TRL's RewardTrainer with a zero-sum penalty, on padded or packed rows."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutputWithPast
from trl import RewardTrainer

from containers.distributed.devices import device_of
from containers.distributed.ranks import highest_of_ranks
from containers.distributed.sums import DeviceSums
from containers.harness.errors import StageError
from containers.models.loading import SCORE_HEAD
from containers.packing.dealing import DealtOrder, ranks_of
from containers.packing.scoring import computed_tokens, packed_rows
from containers.packing.trees import PackedRow, lay_out
from containers.scoring.scorer import classifier_of

# The packs' losses are summed in another order than RewardTrainer's.
_LOSS_TOLERANCE = 1e-3
LAST_LOSS = "whole_loss"


def zero_sum_loss(scores: Tensor) -> Tensor:
    """Return the square of the mean score.

    It pulls only the mean of all scores to zero. Centring, mean((chosen + rejected)²), pulls the sum of each pair to
    zero, and so penalises a model that finds both answers to a prompt bad.

    Args:
        scores: [2B] scores of B pairs.

    Example: chosen [3, -1] and rejected [-2, 0] have the mean 0, so this is 0; centring is (1² + 1²) / 2 = 1.
    """
    return scores.mean().square()


def pair_loss(chosen: Tensor, rejected: Tensor, *, margin: Tensor | float, centring: float | None) -> Tensor:
    """Return RewardTrainer's loss, the mean over pairs of -log σ(c - r - m) + λ (c + r)².

    Args:
        chosen: [B] scores c.
        rejected: [B] scores r.
        margin: [B] margins m; 0: none.
        centring: λ; None: 0.
    """
    loss = -logsigmoid(chosen - rejected - margin).mean()
    return loss if centring is None else loss + centring * (chosen + rejected).square().mean()


class PairTrainer(RewardTrainer):  # type: ignore[misc]
    """RewardTrainer; loss = -log σ(chosen - rejected [- margin]) + centring + zero_sum_penalty * zero_sum_loss.

    The penalty is over the pairs of one forward on one device. `eval_loss` does not include it, so that runs with
    different batches compare.

    Args:
        whole_validation: all validation pairs, if `eval_dataset` has only some of them. The last weights are then
            measured on these too, and the loss is in the trainer's history as `LAST_LOSS`.
    """

    def __init__(self, *, zero_sum_penalty: float, whole_validation: Any = None, **arguments: Any) -> None:
        self._zero_sum_penalty = zero_sum_penalty
        self._whole_validation = whole_validation
        super().__init__(**arguments)

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """Evaluate as RewardTrainer; after the last step, measure the weights on all validation pairs too."""
        found: dict[str, float] = super().evaluate(*arguments, **named)
        if self._whole_validation is not None and self.state.global_step >= self.state.max_steps:
            measured = self.evaluation_loop(
                self.get_eval_dataloader(self._whole_validation),
                description="All validation pairs",
                prediction_loss_only=True,
                metric_key_prefix="whole",
            ).metrics
            self._metrics["eval"].clear()  # RewardTrainer's figures would go into its next line
            self.state.log_history.append({"step": self.state.global_step, LAST_LOSS: measured[LAST_LOSS]})
        return found

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return RewardTrainer's loss, with the penalty during training."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if self._zero_sum_penalty and self.model.training:
            penalty = self._zero_sum_penalty * zero_sum_loss(outputs.logits.float())
            self._metrics["train"]["zero_sum_penalty"].append(float(torch.detach(penalty)))
            loss = loss + penalty
        return (loss, outputs) if return_outputs else loss


Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Pack(PackedRow):
    """One row of whole pairs.

    Attributes:
        pairs: place of each of its pairs in the batch; none in an empty pack, whose scores are ignored.
        lasts: [2 × pairs] place of the last token of chosen and rejected, pair by pair.
    """

    pairs: tuple[int, ...]
    lasts: Tensor


def make_packs(pairs: Sequence[Pair], *, max_tokens: int) -> list[Pack]:
    """Fill packs with pairs, longest first, up to `max_tokens`; a pair that is longer gets its own pack."""
    sides = [side for pair in pairs for side in pair]
    groups = [[place, place + 1] for place in range(0, len(sides), 2)]
    rows = packed_rows(sides, groups, max_items=len(sides), max_tokens=max_tokens)
    packs = [tuple(chosen // 2 for chosen, _ in row) for row in rows]
    return [_pack([pairs[place] for place in places], places) for places in packs]


def _pack(pairs: Sequence[Pair], places: tuple[int, ...]) -> Pack:
    row = lay_out(pairs)
    lasts = torch.tensor([last for tree in row.trees for last in tree.lasts])
    return Pack(row.input_ids, row.position_ids, row.trees, pairs=places, lasts=lasts)


def empty_pack(token: int) -> Pack:
    """Return the shortest possible pack, without pairs; its forward gives scores of a dummy pair."""
    return replace(_pack([((token,), (token,))], (0,)), pairs=())


def collate_pairs(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a batch of token lists; `attention_mask` has one entry per token, for RewardTrainer's count of tokens."""
    num_tokens = sum(len(example["chosen_ids"]) + len(example["rejected_ids"]) for example in examples)
    batch: dict[str, Any] = {"pair": torch.arange(len(examples))}
    if "margin" in examples[0]:
        batch["margin"] = torch.tensor([example["margin"] for example in examples], dtype=torch.float)
    batch["attention_mask"] = torch.ones(num_tokens, dtype=torch.bool)
    batch["pairs"] = tuple((tuple(example["chosen_ids"]), tuple(example["rejected_ids"])) for example in examples)
    return batch


def packed_scores(model: Any, pack: Pack, classifier: PreTrainedModel) -> Tensor:
    """Return [pairs, 2] float32 scores of chosen and rejected; the model must use the attention `packed_tree`.

    Args:
        model: the classifier, or its wrapper by DDP, FSDP or PEFT.
    """
    head: Any = getattr(classifier, SCORE_HEAD)
    seen: list[Tensor] = []
    # The classifier returns one score per row; the hook on the head gets the scores of all tokens.
    hook = head.register_forward_hook(lambda module, given, made: seen.append(made))
    device = device_of(classifier)
    try:
        output = model(**pack.given(device))
    finally:
        hook.remove()
    # Under autocast the head gives bfloat16; only the model's return value is cast to float32.
    scores = seen[0][0, pack.lasts.to(device), 0].float().view(-1, 2)
    if isinstance(model, FSDPModule):
        # FSDP exchanges gradients when a backward passes the output of the whole model or of a trained layer. Without
        # this term, the gradients of a head that is trained alone would stay on their ranks.
        scores = scores + 0.0 * output.logits.sum()
    return scores


class PackedPairTrainer(PairTrainer):
    """PairTrainer with batches from `collate_pairs`, which it computes as packs.

    Args:
        pack_tokens: maximum tokens of a pack.
    """

    def __init__(self, *, pack_tokens: int, **arguments: Any) -> None:
        self._pack_tokens = pack_tokens
        super().__init__(data_collator=collate_pairs, **arguments)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        num_ranks = ranks_of(self.args)
        if num_ranks == 1:
            return super()._get_train_sampler(train_dataset)
        data: Any = self.train_dataset
        sizes = [*map(computed_tokens, zip(data["chosen_ids"], data["rejected_ids"], strict=True))]
        return DealtOrder(
            sizes,
            per_step=num_ranks * self.args.per_device_train_batch_size,
            num_ranks=num_ranks,
            seed=self.args.data_seed,
            epoch=lambda: int(self.state.epoch or 0),
        )

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return RewardTrainer's loss and figures of a whole batch, pack by pack; for evaluation, without backward."""

        def scored(**_: Any) -> SequenceClassifierOutputWithPast:
            return _outputs([(pack, self._scores(model, pack)) for pack in self._packs(inputs["pairs"])])

        return self._loss_of(scored, inputs, return_outputs=return_outputs)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward of each pack.

        Ranks exchange gradients once, with the last pack. If they divide the model, they do so with each pack, since no
        rank has memory for all gradients.
        """
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        batch = self._prepare_inputs(inputs)
        packs = self._packs(batch["pairs"])
        scored: list[tuple[Pack, Tensor]] = []
        losses = DeviceSums()
        for pack in packs:
            exchanges = self.is_fsdp_enabled or pack is packs[-1]
            with nullcontext() if exchanges else self.accelerator.no_sync(model), self.compute_loss_context_manager():
                scores = self._scores(model, pack)
                loss = self._pack_loss(scores, batch, pack) * (len(pack.pairs) / len(batch["pairs"]))
                self.accelerator.backward(loss / self.current_gradient_accumulation_steps)
            scored.append((pack, scores.detach()))
            losses.add("packs", loss)
        with torch.no_grad(), self.compute_loss_context_manager():
            whole = self._loss_of(lambda **_: _outputs(scored), batch)
        losses.add("whole", whole)
        total, of_whole = losses.numbers().values()
        # False for a NaN loss, which RecorderCallback reports.
        if abs(of_whole - total) > _LOSS_TOLERANCE * max(1.0, abs(total)):
            raise StageError(f"The packs' loss {total:.6g} is not RewardTrainer's {of_whole:.6g} on the same scores.")
        mean: Tensor = whole / self.current_gradient_accumulation_steps
        return mean

    def compute_largest(self) -> int:
        """Compute forward and backward of the largest pack that a step of a rank can have, and return its tokens."""
        data: Any = self.train_dataset
        pairs = [*zip(data["chosen_ids"], data["rejected_ids"], strict=True)]
        longest = sorted(pairs, key=computed_tokens, reverse=True)[: self.args.per_device_train_batch_size]
        pack = max(make_packs(longest, max_tokens=self._pack_tokens), key=lambda pack: pack.input_ids.numel())
        model = self.model_wrapped
        with nullcontext() if self.is_fsdp_enabled else self.accelerator.no_sync(model):
            with self.compute_loss_context_manager():
                loss = self._scores(model, pack).sum()
            self.accelerator.backward(loss)
        return pack.input_ids.numel()

    def _loss_of(self, scored: Any, inputs: dict[str, Any], *, return_outputs: bool = False) -> Any:
        """Return RewardTrainer's own loss, with `scored` as the model."""
        known = {name: value for name, value in inputs.items() if name in ("margin", "attention_mask")}
        return super().compute_loss(scored, known, return_outputs=return_outputs)

    def _packs(self, pairs: Sequence[Pair]) -> list[Pack]:
        """Return the batch's packs; if ranks divide the model, all ranks get the same number."""
        packs = make_packs(pairs, max_tokens=self._pack_tokens)
        if self.is_fsdp_enabled:
            packs += [empty_pack(pairs[0][0][0])] * (highest_of_ranks(len(packs)) - len(packs))
        return packs

    def _scores(self, model: Any, pack: Pack) -> Tensor:
        return packed_scores(model, pack, classifier_of(self.accelerator.unwrap_model(model)))

    def _pack_loss(self, scores: Tensor, batch: Mapping[str, Any], pack: Pack) -> Tensor:
        """Return RewardTrainer's loss as the mean over the pack's pairs; 0 for an empty pack."""
        if not pack.pairs:
            return 0.0 * scores.sum()
        chosen, rejected = scores.unbind(-1)
        margin = batch["margin"][list(pack.pairs)] if "margin" in batch else 0.0
        return pair_loss(chosen, rejected, margin=margin, centring=self.args.center_rewards_coefficient)


def _outputs(scored: Sequence[tuple[Pack, Tensor]]) -> SequenceClassifierOutputWithPast:
    """Return scores in the order of the padded batch: [2B, 1], all chosen, then all rejected."""
    places = [place for pack, _ in scored for place in pack.pairs]
    scores = torch.cat([scores for pack, scores in scored if pack.pairs])
    ordered = scores[torch.tensor(places, device=scores.device).argsort()]
    return SequenceClassifierOutputWithPast(logits=ordered.T.reshape(-1, 1))
