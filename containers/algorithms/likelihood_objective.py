"""The objective of supervised fine-tuning in an offline step."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from containers.algorithms.offline_step import StepTotals
from containers.losses.likelihood import negative_log_likelihood


@dataclass(frozen=True)
class Likelihood:
    """Supervised fine-tuning: one completion an example, and each token of the step weighs the same."""

    num_completions: int = 1

    def loss(
        self, logps: Tensor, reference: Tensor, lengths: Tensor, totals: StepTotals
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the completions' share in the mean loss of a token."""
        return negative_log_likelihood(logps, num_tokens=sum(totals.tokens)), {}
