"""One update from completions that are given: from the examples of all ranks to gradients, pack by pack.

An example is a prompt with one completion (fine-tuning) or two (a pair). Its completions lie in one pack, so its loss
needs no other pack. All that couples examples is known before the first backward: how many examples and tokens the
step has over all ranks, and KTO's baseline. So the loss is the same however the step is cut.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor

from containers.distributed.ranks import highest_of_ranks, of_all_ranks
from containers.distributed.sums import DeviceSums
from containers.packing.attention import packed
from containers.packing.logps import CompletionPack, Cut, Pack, causal_of


@dataclass(frozen=True)
class Example:
    """Token ids of a prompt and of completions to it.

    Attributes:
        prompt: never empty.
        completions: one, or the chosen and the rejected one.
        counted: for each completion, which of its tokens the loss counts; empty: all. In a conversation with several
            answers, the turns of the user between them are not counted.
        mismatched: completions to other prompts, by which KTO estimates its KL; as many as `completions`, or none.
        reference: log-probabilities of `completions` under the reference, each a sum; empty if the loss has none.
        mismatched_reference: the same of `mismatched`.
    """

    prompt: list[int]
    completions: tuple[list[int], ...]
    counted: tuple[list[bool], ...] = ()
    mismatched: tuple[list[int], ...] = ()
    reference: tuple[float, ...] = ()
    mismatched_reference: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("An example needs a prompt: nothing would predict the first token of its completions.")

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and of its completions."""
        return len(self.prompt) + sum(map(len, self.completions))

    def num_counted(self, side: int) -> int:
        """Tokens of a completion that the loss counts."""
        return sum(self.counted[side]) if self.counted else len(self.completions[side])


@dataclass(frozen=True)
class StepTotals:
    """What is known of a whole step, over all ranks, before its first backward.

    Attributes:
        num_examples: examples of the step.
        tokens: counted tokens of the first completions of all examples, of the second ones, and so on.
        kl_baseline: mean log ratio of the mismatched completions, at least 0 (nats); 0 if there are none.
    """

    num_examples: int
    tokens: tuple[int, ...]
    kl_baseline: float = 0.0


class Objective(Protocol):
    """The loss of some examples of a step."""

    @property
    def num_completions(self) -> int:
        """Completions of an example."""
        ...

    def loss(
        self, logps: Tensor, reference: Tensor, lengths: Tensor, totals: StepTotals
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the share of these B examples in the step's loss, and [B] figures of each.

        Args:
            logps: [B, completions] log-probabilities, each the sum over the completion's tokens.
            reference: [B, completions] the same under the reference; zeros if the loss has none.
            lengths: [B, completions] tokens.
        """
        ...


@dataclass(frozen=True)
class OfflineStep:
    """Computes updates and evaluations of one training.

    Attributes:
        cut: makes packs, or padded rows, of prompts and completions; an example's completions stay together.
        divides: whether the ranks divide the model. Then each pack exchanges gradients, and all ranks compute the same
            number of packs.
        aux_weight: weight of the loss by which experts are balanced.
    """

    accelerator: Accelerator
    objective: Objective
    cut: Cut
    divides: bool = False
    aux_weight: float = 0.0

    def update(self, model: Any, examples: Sequence[Example]) -> tuple[Tensor, dict[str, float]]:
        """Compute forward and backward of each pack; ranks exchange gradients with the last one.

        Args:
            examples: this rank's.

        Returns:
            The loss, whose mean over the ranks is that of the step; and the figures, means over the step's examples;
            `entropy` is per token of the completions (nats).
        """
        totals = self.totals(model, examples)
        packs, num_own = self._packs(examples)
        loss, sums = torch.zeros((), device=self.accelerator.device), Sums()
        with self._computing(model, packs):
            for place, pack in enumerate(packs):
                syncs = self.divides or place == len(packs) - 1
                with nullcontext() if syncs else self.accelerator.no_sync(model):
                    part = self._pack_loss(model, examples, pack, totals, sums, is_own=place < num_own)
                    part = part * self.accelerator.num_processes
                    self.accelerator.backward(part)
                loss += part.detach()
        return loss, sums.means(totals)

    @torch.no_grad()
    def measure(self, model: Any, examples: Sequence[Example]) -> dict[str, float]:
        """Return `loss` and the figures of all ranks' examples as one step; the model is in evaluation mode."""
        totals = self.totals(model, examples)
        packs, num_own = self._packs(examples)
        loss, sums = DeviceSums(("loss",)), Sums()
        with self._computing(model, packs):
            for place, pack in enumerate(packs):
                part = self._pack_loss(model, examples, pack, totals, sums, is_own=place < num_own, balances=False)
                loss.add("loss", part)
        return {"loss": sum(of_all_ranks(loss.numbers()["loss"])), **sums.means(totals)}

    @torch.no_grad()
    def totals(self, model: Any, examples: Sequence[Example]) -> StepTotals:
        """Return what is known of the step from the examples of all ranks; KTO's baseline takes a forward."""
        sides = range(self.objective.num_completions)
        tokens_of_sides = (sum(example.num_counted(side) for example in examples) for side in sides)
        own = (len(examples), sum(len(example.mismatched) for example in examples), *tokens_of_sides)
        num_examples, num_mismatched, *tokens = (sum(parts) for parts in zip(*of_all_ranks(own), strict=True))
        baseline = self._kl_baseline(model, examples) if num_mismatched else 0.0
        return StepTotals(num_examples, tuple(tokens), baseline)

    def _kl_baseline(self, model: Any, examples: Sequence[Example]) -> float:
        """Return the mean over all ranks' mismatched completions of log policy − log reference, at least 0."""
        packs, num_own = self._packs(examples, mismatched=True)
        found = DeviceSums()
        references = [value for example in examples for value in example.mismatched_reference]
        policy = self.accelerator.unwrap_model(model)
        with self._computing(model, packs), self.accelerator.autocast():
            for place, pack in enumerate(packs):
                logps = policy(pack=pack)[0]
                if place < num_own:
                    for row, part in zip(pack.rows, pack.by_completion(logps), strict=True):
                        found.add(str(row), part.double())
        own = [value - references[int(row)] for row, value in found.numbers().items()]
        everywhere = list(chain.from_iterable(of_all_ranks(own)))
        return max(sum(everywhere) / max(len(everywhere), 1), 0.0)

    def _pack_loss(
        self,
        model: Any,
        examples: Sequence[Example],
        pack: Pack,
        totals: StepTotals,
        sums: "Sums",
        *,
        is_own: bool,
        balances: bool = True,
    ) -> Tensor:
        """Return the pack's share in the step's loss, and add its figures; 0 for a pack that only keeps ranks even."""
        with self.accelerator.autocast():
            logps, entropies, aux = model(pack=pack)
        if not is_own:
            nothing: Tensor = 0.0 * logps.sum()
            return nothing
        width, device = self.objective.num_completions, logps.device
        found = torch.stack([part.double().sum() for part in pack.by_completion(logps)])
        order = torch.tensor(pack.rows).argsort()
        rows = [pack.rows[place] for place in order.tolist()]
        places = [row // width for row in rows[::width]]
        if rows != [place * width + side for place in places for side in range(width)]:
            raise AssertionError("The completions of an example are in several packs.")
        lengths = torch.tensor(pack.lengths)[order].view(-1, width)
        reference = torch.tensor(
            [examples[place].reference or (0.0,) * width for place in places], dtype=found.dtype, device=device
        )
        loss, figures = self.objective.loss(
            found[order.to(device)].view(-1, width), reference, lengths.to(device), totals
        )
        sums.add(figures, entropy=entropies)
        if aux is not None and balances:
            loss = loss + self.aux_weight * aux * len(places) / len(examples) / self.accelerator.num_processes
        return loss.float()

    def in_largest(self, examples: Sequence[Example]) -> list[Example]:
        """Return those of the examples that lie in the largest of their packs."""
        packs, num_own = self._packs(examples)
        largest = max(packs[:num_own], key=lambda pack: pack.input_ids.numel())
        return [examples[place] for place in sorted({row // self.objective.num_completions for row in largest.rows})]

    def _packs(self, examples: Sequence[Example], *, mismatched: bool = False) -> tuple[list[Pack], int]:
        """Return the packs, and how many are of these examples; if ranks divide the model, the rest keep them even."""
        of_each = [example.mismatched if mismatched else example.completions for example in examples]
        prompts = [example.prompt for example, own in zip(examples, of_each, strict=True) for _ in own]
        completions = [ids for own in of_each for ids in own]
        counted = None if mismatched else _counted(examples)
        packs = list(self.cut(prompts, completions, counted)) if prompts else []
        num_own = len(packs)
        if self.divides:
            width = self.objective.num_completions
            packs += [*self.cut([[0]] * width, [[0]] * width)] * (highest_of_ranks(num_own) - num_own)
        return packs, num_own

    def _computing(self, model: Any, packs: Sequence[Pack]) -> AbstractContextManager[Any]:
        is_packed = any(isinstance(pack, CompletionPack) for pack in packs)
        return packed(causal_of(self.accelerator.unwrap_model(model))) if is_packed else nullcontext()


def _counted(examples: Sequence[Example]) -> list[list[bool]] | None:
    """Which tokens of each completion are counted; None if all are."""
    if not any(example.counted for example in examples):
        return None
    return [
        counted
        for example in examples
        for counted in example.counted or ([True] * len(ids) for ids in example.completions)
    ]


class Sums:
    """Sums of figures over this rank's examples, and of the entropy over its tokens."""

    def __init__(self) -> None:
        self._found = DeviceSums()

    def add(self, figures: Mapping[str, Tensor], *, entropy: Tensor) -> None:
        """Add the figures of some examples."""
        for name, values in (*figures.items(), ("entropy", entropy)):
            self._found.add(name, values)

    def means(self, totals: StepTotals) -> dict[str, float]:
        """Return the means over all ranks' examples, and of the entropy over all tokens. All ranks must call it."""
        parts = of_all_ranks(self._found.numbers())
        names = dict.fromkeys(name for part in parts for name in part)
        whole = {name: sum(part.get(name, 0.0) for part in parts) for name in names}
        entropy = whole.pop("entropy", 0.0) / max(sum(totals.tokens), 1)
        return {name: value / totals.num_examples for name, value in whole.items()} | {"entropy": entropy}
