"""The completions that one policy writes together: what a step needs of them, and the updates that they are used for.

A rollout is used for one update, or for several: in minibatches, and more than once. Then every rank knows the rows of
all ranks, and a checkpoint in between has them, so a resumed training goes on with the same numbers.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from containers.contracts.schedule import Minibatches
from containers.distributed.ranks import of_all_ranks
from containers.packing.dealing import dealt

ROLLOUT_FILE = "rollout.safetensors"
# What a step finds out about each row: a tensor of one number for each token, or of a single one.
_OF_ROWS = ("reference", "old", "advantages", "values", "returns", "sampling")
_TOLD = ("used", "seed", "step", "policy")
_OF_THE_ROLLOUT = ("rewards", "lengths", "ended", "takes_part", "divides")


@dataclass
class StepBatch:
    """The completions of one step: this rank's tokens, and of all ranks what the loss couples.

    Attributes:
        prompts: token ids of the prompt of each of this rank's B rows; siblings are adjacent.
        completions: token ids of each.
        first_row: place of the first of these rows among the R rows of all ranks.
        rewards: [R], before the KL.
        lengths: [R] tokens of each completion.
        ended: [R] bool; false for a completion that was cut off.
        takes_part: [R] bool.
        divides: [R / K] bool; false where an advantage is not to be divided by the group's spread.
        rounding: differences of rewards up to this are noise.
        reference: log-probabilities of each row's tokens under the reference; empty without a KL.
        old: the same under the policy that wrote the row; None where the update's own forward gives them.
        advantages: of each row, [1] or one for each of its tokens; None where the update's own forward gives it.
        values: what the critic expected at each token when the row was new; empty without a critic.
        returns: what the critic is to expect there.
        sampling: log-probabilities of each row's tokens by what wrote them; empty where that is the policy itself.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    first_row: int
    rewards: Tensor
    lengths: Tensor
    ended: Tensor
    takes_part: Tensor
    divides: Tensor
    rounding: float = 0.0
    reference: list[Tensor] = field(default_factory=list)
    old: list[Tensor | None] = field(default_factory=list)
    advantages: list[Tensor | None] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    returns: list[Tensor] = field(default_factory=list)
    sampling: list[Tensor] = field(default_factory=list)

    @property
    def own(self) -> slice:
        """The places of this rank's rows among those of all ranks."""
        return slice(self.first_row, self.first_row + len(self.completions))

    def gathered(self, prompts: list[list[int]], completions: list[list[int]]) -> "StepBatch":
        """Return the batch with the rows of all ranks, on the CPU; all ranks must call it.

        Args:
            prompts: of the R rows.
            completions: likewise.
        """
        parts = of_all_ranks({name: [_kept(row) for row in getattr(self, name)] for name in _OF_ROWS})
        kept: dict[str, Any] = {name: getattr(self, name) for name in (*_OF_THE_ROLLOUT, "rounding")}
        kept |= {name: [row for part in parts for row in part[name]] for name in _OF_ROWS}
        return StepBatch(prompts, completions, 0, **kept)

    def part(self, rows: Sequence[int], *, rank: int, num_ranks: int) -> "StepBatch":
        """Return the batch of these rows, of which the rank has its share; `self` has the rows of all ranks.

        Args:
            rows: places, whole groups.
        """
        share, siblings = len(rows) // num_ranks, len(self.rewards) // len(self.divides)
        own = rows[rank * share : (rank + 1) * share]
        at = torch.tensor(rows)
        return StepBatch(
            prompts=[self.prompts[row] for row in own],
            completions=[self.completions[row] for row in own],
            first_row=rank * share,
            rewards=self.rewards[at],
            lengths=self.lengths[at],
            ended=self.ended[at],
            takes_part=self.takes_part[at],
            divides=self.divides[at[::siblings] // siblings],
            rounding=self.rounding,
            **{name: [found[row] for row in own] if (found := getattr(self, name)) else [] for name in _OF_ROWS},
        )


@dataclass
class Rollout:
    """A rollout with the updates that are left of it.

    Attributes:
        batch: of one update alone, this rank's rows; else the rows of all ranks.
        minibatches: how it is divided into updates.
        seed: of the order of the minibatches in each epoch.
        step: updates of the training before it was written.
        policy: digest of the trained weights that wrote it.
        used: updates so far.
    """

    batch: StepBatch
    minibatches: Minibatches
    seed: str
    rank: int = 0
    num_ranks: int = 1
    step: int = 0
    policy: str = ""
    used: int = 0

    @property
    def is_used_up(self) -> bool:
        """Whether it has no update left."""
        return self.used == self.minibatches.updates

    def next_batch(self) -> StepBatch:
        """Return what the next update trains on."""
        number, self.used = self.used, self.used + 1
        if self.minibatches.updates == 1:
            return self.batch
        rows = minibatch_rows(self.minibatches, number, num_groups=len(self.batch.divides), seed=self.seed)
        siblings = len(self.batch.rewards) // len(self.batch.divides)
        tokens = [self._num_tokens(group, siblings) for group in rows]
        order = dealt(tokens, num_ranks=self.num_ranks) or range(len(rows))
        of_groups = [rows[group] * siblings + place for group in order for place in range(siblings)]
        return self.batch.part(of_groups, rank=self.rank, num_ranks=self.num_ranks)

    def _num_tokens(self, group: int, siblings: int) -> int:
        first = group * siblings
        return len(self.batch.prompts[first]) + int(self.batch.lengths[first : first + siblings].sum())

    def give_up(self) -> None:
        """Use it for no further update: the policy that wrote it is gone."""
        self.used = self.minibatches.updates

    def save(self, file: Path) -> None:
        """Write it; a rollout of several updates only."""
        tensors: dict[str, Tensor] = {name: getattr(self.batch, name) for name in _OF_THE_ROLLOUT}
        tensors["ids"] = torch.tensor([token for ids in self.batch.completions for token in ids], dtype=torch.int32)
        widths = {}
        for name in _OF_ROWS:
            rows = [row for row in getattr(self.batch, name) if row is not None]
            if rows:
                tensors[name], widths[name] = torch.cat(rows), [len(row) for row in rows]
        told = {name: getattr(self, name) for name in _TOLD}
        told |= {"rounding": self.batch.rounding, "widths": widths}
        save_file({name: value.contiguous() for name, value in tensors.items()}, file, {"told": json.dumps(told)})

    @classmethod
    def load(cls, file: Path, prompts: list[list[int]], minibatches: Minibatches, **of_ranks: int) -> "Rollout":
        """Return the rollout that was written there.

        Args:
            prompts: of its R rows.
        """
        with safe_open(file, framework="pt") as found:
            told = json.loads(found.metadata()["told"])
            tensors = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118 - not a dict
        ids = torch.split(tensors["ids"].long(), tensors["lengths"].tolist())
        whole: dict[str, Any] = {name: tensors[name] for name in _OF_THE_ROLLOUT}
        whole |= {name: list(torch.split(tensors[name], widths)) for name, widths in told["widths"].items()}
        batch = StepBatch(prompts, [row.tolist() for row in ids], 0, **whole, rounding=told["rounding"])
        more: dict[str, Any] = {name: told[name] for name in _TOLD} | of_ranks
        return cls(batch, minibatches, **more)


def minibatch_rows(minibatches: Minibatches, number: int, *, num_groups: int, seed: str) -> list[int]:
    """Return the groups of the update of that number; each epoch has another order, unless it is one minibatch."""
    epoch, place = divmod(number, minibatches.per_epoch)
    order = list(range(num_groups))
    if minibatches.per_epoch > 1:
        random.Random(f"{seed} {epoch}").shuffle(order)  # noqa: S311  (an order, not a secret)
    size = num_groups // minibatches.per_epoch
    return order[place * size : (place + 1) * size]


def _kept(row: Tensor | None) -> Tensor | None:
    return None if row is None else row.detach().cpu()
