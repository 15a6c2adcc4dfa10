"""The training loop on completions that are given: transformers' Trainer, each step of which is an `OfflineStep`."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerControl, default_data_collator

from containers.algorithms.offline_step import Example, OfflineStep
from containers.distributed.ranks import of_all_ranks, own_rank
from containers.models.trial import evaluating
from containers.packing.dealing import dealt_families, ranks_of


class Places(torch.utils.data.Dataset[dict[str, int]]):
    """The places of examples, as the data of the Trainer; tokens need not pass through its loader."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, place: int) -> dict[str, int]:
        return {"place": place}


class FamilyOrder(torch.utils.data.Sampler[int]):
    """The order of an epoch: families at random, and their members one after the other, to share their prompt.

    The order depends on seed and epoch alone, so it is the same on every rank and after a resume. The examples of a
    step are dealt to the ranks.

    Args:
        families: for each example a number, the same for all members of a family.
        examples: those that are dealt; needed for several ranks only.
        per_step: examples of a step, over all ranks.
        epoch: returns the current epoch, counted from 0. accelerate tells a sampler its epoch, but not behind the two
            wrappers that it has after a resume on several ranks.
    """

    def __init__(
        self,
        families: Sequence[int],
        *,
        seed: int,
        epoch: Callable[[], int],
        examples: Sequence[Example] = (),
        per_step: int = 1,
        num_ranks: int = 1,
    ) -> None:
        members: dict[int, list[int]] = defaultdict(list)
        for place, family in enumerate(families):
            members[family].append(place)
        self._family_of = families
        self._families = list(members.values())
        self._examples = examples
        self._per_step = per_step
        self._num_ranks = num_ranks
        self._seed = seed
        self._epoch = epoch

    def __len__(self) -> int:
        return sum(map(len, self._families))

    def __iter__(self) -> Iterator[int]:
        dice = random.Random(f"{self._seed} {self._epoch()}")  # noqa: S311 - not for security
        order = [*chain.from_iterable(dice.sample(self._families, len(self._families)))]
        if self._num_ranks == 1:
            return iter(order)
        steps = (order[start : start + self._per_step] for start in range(0, len(order), self._per_step))
        return chain.from_iterable(map(self._dealt, steps))

    def _dealt(self, places: list[int]) -> list[int]:
        if len(places) < self._per_step:
            return places
        families = [[*members] for _, members in groupby(places, key=lambda place: self._family_of[place])]
        return dealt_families(families, self._num_tokens, num_ranks=self._num_ranks)

    def _num_tokens(self, family: Sequence[int]) -> int:
        """Tokens of some members of a family, their prompt once."""
        of_completions = (self._examples[place].num_tokens - len(self._examples[place].prompt) for place in family)
        return len(self._examples[family[0]].prompt) + sum(of_completions)


class OfflineTrainer(Trainer):  # type: ignore[misc]
    """Trainer whose step and evaluation are those of an `OfflineStep`.

    Curves: the loss and the figures of the objective; `entropy` of the policy on the completions' tokens (nats per
    token); `num_tokens` of prompts and completions so far. Those of an evaluation begin with `eval_`; they are over all
    its examples as one step, so they do not depend on batches or ranks.

    Args:
        examples: those to train on.
        validation: those to evaluate on.
        families: for each example a number; examples with the same number are in a step together, as far as they fit.
        make_step: makes the step; takes the Trainer's accelerator.
        **arguments: as Trainer; the batch per device is all that a rank computes in a step, without accumulation.
    """

    def __init__(
        self,
        *,
        examples: Sequence[Example],
        validation: Sequence[Example],
        families: Sequence[int],
        make_step: Any,
        **arguments: Any,
    ) -> None:
        super().__init__(
            data_collator=default_data_collator,
            train_dataset=Places(len(examples)),
            eval_dataset=Places(len(validation)),
            **arguments,
        )
        self._examples = examples
        self._validation = validation
        self._families = families
        self.step: OfflineStep = make_step(self.accelerator)
        self._figures: dict[str, list[float]] = defaultdict(list)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Compute the gradients of one step, and return its loss."""
        model.train()
        examples = [self._examples[place] for place in inputs["place"].tolist()]
        loss, figures = self.step.update(model, examples)
        self.state.num_input_tokens_seen += sum(of_all_ranks(sum(example.num_tokens for example in examples)))
        for name, value in figures.items():
            self._figures[name].append(value)
        return loss

    def compute_largest(self) -> int:
        """Compute forward and backward of the largest pack that a step of a rank can have, and return its tokens."""
        longest = sorted(self._examples, key=lambda example: example.num_tokens, reverse=True)
        examples = self.step.in_largest(longest[: self.args.per_device_train_batch_size])
        self.step.update(self.model_wrapped, examples)
        return sum(example.num_tokens for example in examples)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return, and log, loss and figures of the validation examples; each rank computes its share."""
        own = self._validation[own_rank() :: self.accelerator.num_processes]
        with evaluating(self.model):
            found = self.step.measure(self.model, own)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(metrics)
        self.control: TrainerControl = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add to a line about training the means of the figures since the last one."""
        if "loss" in logs and self._figures:
            logs = logs | {name: sum(values) / len(values) for name, values in self._figures.items()}
            logs["num_tokens"] = self.state.num_input_tokens_seen
            self._figures.clear()
        super().log(logs, start_time)

    def _get_train_sampler(self, train_dataset: Any = None) -> FamilyOrder:
        num_ranks = ranks_of(self.args)
        return FamilyOrder(
            self._families,
            seed=self.args.seed,
            epoch=lambda: int(self.state.epoch or 0),
            examples=self._examples,
            per_step=num_ranks * self.args.per_device_train_batch_size,
            num_ranks=num_ranks,
        )
