"""TRL's RewardTrainer with a penalty on the mean score of a batch."""

from typing import Any

import torch
from torch import Tensor
from trl import RewardTrainer


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
