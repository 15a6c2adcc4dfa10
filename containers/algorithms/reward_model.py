"""TRL's RewardTrainer: its loss, packed where the model can be."""

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

from containers.distributed.ranks import highest_of_ranks
from containers.harness.errors import StageError
from containers.models.loading import SCORE_HEAD
from containers.packing.trees import Tree, lay_out
from containers.scoring.scorer import classifier_of

# The packs' losses are added in another order than RewardTrainer adds them.
_LOSS_TOLERANCE = 1e-3


def zero_sum_loss(scores: Tensor) -> Tensor:
    """The square of the mean score.

    It pulls the level of all scores to zero and leaves each pair its own, where centring, mean((chosen + rejected)²),
    pulls every pair to a sum of zero: with centring a model that finds both answers to a prompt bad pays for it.

    Args:
        scores: [2B] scores of B pairs.

    Example: chosen [3, -1] and rejected [-2, 0] have the mean 0, so this is 0; centring is (1² + 1²) / 2 = 1.
    """
    return scores.mean().square()


class PairTrainer(RewardTrainer):  # type: ignore[misc]
    """RewardTrainer; loss = -log σ(chosen - rejected [- margin]) + centring + zero_sum_penalty * zero_sum_loss.

    The batch of the penalty is what one device scores in one forward. It is no part of `eval_loss`, which is compared
    between runs whose batches differ.
    """

    def __init__(self, *, zero_sum_penalty: float, **arguments: Any) -> None:
        self._zero_sum_penalty = zero_sum_penalty
        super().__init__(**arguments)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """As RewardTrainer's, with the penalty while it trains."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if self._zero_sum_penalty and self.model.training:
            penalty = self._zero_sum_penalty * zero_sum_loss(outputs.logits.float())
            self._metrics["train"]["zero_sum_penalty"].append(float(torch.detach(penalty)))
            loss = loss + penalty
        return (loss, outputs) if return_outputs else loss


Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Pack:
    """One row of whole pairs.

    Attributes:
        input_ids: [1, T].
        position_ids: [1, T].
        pairs: place of each of its pairs in the batch; none in an empty pack, whose scores count for nothing.
        lasts: [2 × pairs] place of the last token of chosen and rejected, pair by pair.
    """

    input_ids: Tensor
    position_ids: Tensor
    trees: tuple[Tree, ...]
    pairs: tuple[int, ...]
    lasts: Tensor


def make_packs(pairs: Sequence[Pair], *, max_tokens: int) -> list[Pack]:
    """Packs of pairs, the longest first, none above the budget but a pair that is longer by itself, which is alone."""
    layouts = [lay_out([pair]) for pair in pairs]
    lengths = [len(tokens) for tokens, _, _ in layouts]
    packs: list[list[int]] = []
    free: list[int] = []
    for place in sorted(range(len(pairs)), key=lambda place: lengths[place], reverse=True):
        found = next((number for number, room in enumerate(free) if room >= lengths[place]), None)
        if found is None:
            packs.append([place])
            free.append(max_tokens - lengths[place])
        else:
            packs[found].append(place)
            free[found] -= lengths[place]
    return [_pack([pairs[place] for place in places], tuple(places)) for places in packs]


def _pack(pairs: Sequence[Pair], places: tuple[int, ...]) -> Pack:
    tokens, positions, trees = lay_out(pairs)
    return Pack(
        input_ids=torch.tensor([tokens]),
        position_ids=torch.tensor([positions]),
        trees=trees,
        pairs=places,
        lasts=torch.tensor([last for tree in trees for last in tree.lasts]),
    )


def empty_pack(token: int) -> Pack:
    """A pack of no pair, as short as can be; a forward of it gives the scores of one pair that is none."""
    return replace(_pack([((token,), (token,))], (0,)), pairs=())


def collate_pairs(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A batch of token lists; `attention_mask`, by which RewardTrainer counts tokens, has one entry per real token."""
    num_tokens = sum(len(example["chosen_ids"]) + len(example["rejected_ids"]) for example in examples)
    batch: dict[str, Any] = {"pair": torch.arange(len(examples))}
    if "margin" in examples[0]:
        batch["margin"] = torch.tensor([example["margin"] for example in examples], dtype=torch.float)
    batch["attention_mask"] = torch.ones(num_tokens, dtype=torch.bool)
    batch["pairs"] = tuple((tuple(example["chosen_ids"]), tuple(example["rejected_ids"])) for example in examples)
    return batch


def packed_scores(model: Any, pack: Pack, classifier: PreTrainedModel) -> Tensor:
    """[pairs, 2] float32 scores of chosen and rejected, of a model that attends by `packed_tree`.

    Args:
        model: what is called: the classifier, or what DDP, FSDP or PEFT made of it.
    """
    head: Any = getattr(classifier, SCORE_HEAD)
    seen: list[Tensor] = []
    # The classifier itself returns one score a row; the head is asked for those of all tokens.
    hook = head.register_forward_hook(lambda module, given, made: seen.append(made))
    device = classifier.device
    try:
        output = model(
            input_ids=pack.input_ids.to(device),
            position_ids=pack.position_ids.to(device),
            use_cache=False,
            trees=pack.trees,
        )
    finally:
        hook.remove()
    # Under autocast the head itself gives bfloat16, and only what a model returns is made float32.
    scores = seen[0][0, pack.lasts.to(device), 0].float().view(-1, 2)
    if isinstance(model, FSDPModule):
        # Gradients are exchanged when a backward comes through the output of the whole, or of a layer that is trained:
        # without this, those of a head that is trained alone would stay on their ranks.
        scores = scores + 0.0 * output.logits.sum()
    return scores


class PackedPairTrainer(PairTrainer):
    """PairTrainer whose batches are `collate_pairs`' and whose forwards are packs.

    Args:
        pack_tokens: tokens of a pack, at most.
    """

    def __init__(self, *, pack_tokens: int, **arguments: Any) -> None:
        self._pack_tokens = pack_tokens
        super().__init__(data_collator=collate_pairs, **arguments)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """RewardTrainer's loss and figures of a whole batch, pack by pack; for evaluation, without a backward."""

        def scored(**_: Any) -> SequenceClassifierOutputWithPast:
            return _outputs([(pack, self._scores(model, pack)) for pack in self._packs(inputs["pairs"])])

        return self._loss_of(scored, inputs, return_outputs=return_outputs)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of each pack.

        Ranks exchange gradients once, with the last pack; where they divide the model, with each, since one rank has no
        room for all gradients.
        """
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        batch = self._prepare_inputs(inputs)
        packs = self._packs(batch["pairs"])
        scored: list[tuple[Pack, Tensor]] = []
        total = 0.0
        for pack in packs:
            exchanges = self.is_fsdp_enabled or pack is packs[-1]
            with nullcontext() if exchanges else self.accelerator.no_sync(model), self.compute_loss_context_manager():
                scores = self._scores(model, pack)
                loss = self._pack_loss(scores, batch, pack) * (len(pack.pairs) / len(batch["pairs"]))
                self.accelerator.backward(loss / self.current_gradient_accumulation_steps)
            scored.append((pack, scores.detach()))
            total += float(loss.detach())
        with torch.no_grad(), self.compute_loss_context_manager():
            whole = self._loss_of(lambda **_: _outputs(scored), batch)
        # A loss that is no number is the guards' to report.
        if abs(float(whole) - total) > _LOSS_TOLERANCE * max(1.0, abs(total)):
            raise StageError(
                f"The packs' loss {total:.6g} is not RewardTrainer's {float(whole):.6g} on the same scores."
            )
        mean: Tensor = whole / self.current_gradient_accumulation_steps
        return mean

    def _loss_of(self, scored: Any, inputs: dict[str, Any], *, return_outputs: bool = False) -> Any:
        """RewardTrainer's own loss, with `scored` in the model's place."""
        known = {name: value for name, value in inputs.items() if name in ("margin", "attention_mask")}
        return super().compute_loss(scored, known, return_outputs=return_outputs)

    def _packs(self, pairs: Sequence[Pair]) -> list[Pack]:
        """The batch's packs, on all ranks equally many where they divide the model."""
        packs = make_packs(pairs, max_tokens=self._pack_tokens)
        if self.is_fsdp_enabled:
            packs += [empty_pack(pairs[0][0][0])] * (highest_of_ranks(len(packs)) - len(packs))
        return packs

    def _scores(self, model: Any, pack: Pack) -> Tensor:
        return packed_scores(model, pack, classifier_of(self.accelerator.unwrap_model(model)))

    def _pack_loss(self, scores: Tensor, batch: Mapping[str, Any], pack: Pack) -> Tensor:
        """Mean over the pack's pairs of what RewardTrainer's loss is a mean of; 0 for an empty one."""
        if not pack.pairs:
            return 0.0 * scores.sum()
        chosen, rejected = scores.unbind(-1)
        margin = batch["margin"][list(pack.pairs)] if "margin" in batch else 0.0
        loss = -logsigmoid(chosen - rejected - margin).mean()
        if self.args.center_rewards_coefficient is not None:
            loss = loss + self.args.center_rewards_coefficient * (chosen + rejected).square().mean()
        return loss


def _outputs(scored: Sequence[tuple[Pack, Tensor]]) -> SequenceClassifierOutputWithPast:
    """Scores in the order of the padded batch: [2B, 1], every chosen one, then every rejected one."""
    places = [place for pack, _ in scored for place in pack.pairs]
    scores = torch.cat([scores for pack, scores in scored if pack.pairs])
    ordered = scores[torch.tensor(places, device=scores.device).argsort()]
    return SequenceClassifierOutputWithPast(logits=ordered.T.reshape(-1, 1))
