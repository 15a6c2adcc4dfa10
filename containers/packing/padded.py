"""Log-probabilities of completions as padded rows, for models whose attention or head packs cannot compute."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from containers.distributed.devices import device_of


@dataclass(frozen=True)
class PaddedRows:
    """Some rows of a batch, each a prompt with its completion, padded on the right.

    Attributes:
        input_ids: [B, L].
        attention_mask: [B, L].
        rows: place of each of its completions in the batch.
        starts: tokens of each prompt.
        counted: for each completion, [C] which of its tokens are targets.
    """

    input_ids: Tensor
    attention_mask: Tensor
    rows: tuple[int, ...]
    starts: tuple[int, ...]
    counted: tuple[Tensor, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Targets in each of these completions."""
        return tuple(int(own.sum()) for own in self.counted)

    def by_completion(self, values: Tensor) -> tuple[Tensor, ...]:
        """Split values of the N predicted tokens by completion."""
        return torch.split(values, list(self.lengths))

    def computed(
        self, model: PreTrainedModel, temperature: float, *, entropy_learns: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return [N] log-probabilities, [N] entropies, and the loss by which experts are balanced, if there are any.

        Args:
            entropy_learns: the entropies have a gradient too.
        """
        device = device_of(model)
        ids, mask = self.input_ids.to(device), self.attention_mask.to(device)
        # Logits [B, kept, V] are the largest tensor by far; position t predicts token t + 1.
        first = min(self.starts) - 1
        balances = bool(getattr(model.config.get_text_config(), "router_aux_loss_coef", 0.0))
        more: dict[str, Any] = {"output_router_logits": True} if balances else {}
        made = model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=ids.shape[1] - first, **more)
        logps, entropies = [], []
        for row, (start, counted) in enumerate(zip(self.starts, self.counted, strict=True)):
            own, targets = made.logits[row, start - 1 - first :][: len(counted)], ids[row, start : start + len(counted)]
            if not counted.all():
                own, targets = own[counted], targets[counted.to(targets.device)]
            scores = (own.float() / temperature).log_softmax(dim=-1)
            logps.append(scores.gather(1, targets[:, None]).squeeze(1))
            with nullcontext() if entropy_learns else torch.no_grad():
                entropies.append(-(scores.exp() * scores).sum(dim=-1))
        return torch.cat(logps), torch.cat(entropies), made.aux_loss if balances else None

    def states(self, backbone: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the states [N, H] at the predicting tokens, and [B, H] at each completion's last token."""
        ids, mask = self.input_ids.to(device), self.attention_mask.to(device)
        hidden: Tensor = backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        predicting, lasts = [], []
        for row, (start, counted) in enumerate(zip(self.starts, self.counted, strict=True)):
            predicting.append(hidden[row, start - 1 : start - 1 + len(counted)][counted.to(device)])
            lasts.append(hidden[row, start + len(counted) - 1])
        return torch.cat(predicting), torch.stack(lasts)


def padded_rows_of(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    counted: Sequence[Sequence[bool]] | None = None,
    *,
    at_a_time: int,
) -> list[PaddedRows]:
    """Return all rows in order, `at_a_time` of them in a forward; `counted` as in `completion_packs`."""
    places = range(len(prompts))
    every = counted or [[True] * len(ids) for ids in completions]
    return [_rows(prompts, completions, every, places[start : start + at_a_time]) for start in places[::at_a_time]]


def _rows(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    counted: Sequence[Sequence[bool]],
    rows: range,
) -> PaddedRows:
    sequences = [[*prompts[row], *completions[row]] for row in rows]
    width = max(map(len, sequences))
    # The padding is masked, so any token of the vocabulary will do.
    return PaddedRows(
        input_ids=torch.tensor([ids + [0] * (width - len(ids)) for ids in sequences]),
        attention_mask=torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in sequences]),
        rows=tuple(rows),
        starts=tuple(len(prompts[row]) for row in rows),
        counted=tuple(torch.tensor(counted[row], dtype=torch.bool) for row in rows),
    )
