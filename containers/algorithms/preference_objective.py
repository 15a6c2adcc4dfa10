"""The objective of a training on pairs in an offline step: one of the DPO family."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from containers.algorithms.offline_step import StepTotals
from containers.contracts.configs.parts.preference_losses import PreferenceLoss
from containers.losses.preferences import OBJECTIVES, Pairs, figures, likelihood


@dataclass(frozen=True)
class Preference:
    """A loss on pairs, as the mean over the step's pairs, and sft_weight × the mean loss of a chosen token."""

    parts: PreferenceLoss
    num_completions: int = 2

    def loss(
        self, logps: Tensor, reference: Tensor, lengths: Tensor, totals: StepTotals
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the pairs' share in the step's loss, and their figures; `kl` is the baseline of kto."""
        if not self.parts.has_reference:
            reference = torch.zeros_like(logps)
        pairs = Pairs(
            chosen=logps[:, 0],
            rejected=logps[:, 1],
            reference_chosen=reference[:, 0],
            reference_rejected=reference[:, 1],
            chosen_tokens=lengths[:, 0],
            rejected_tokens=lengths[:, 1],
            kl_baseline=totals.kl_baseline,
        )
        loss = OBJECTIVES[self.parts.objective](pairs, self.parts).sum() / totals.num_examples
        if self.parts.sft_weight:
            loss = loss + likelihood(pairs, self.parts, chosen_tokens=totals.tokens[0])
        found = figures(pairs, self.parts)
        if self.parts.objective == "kto":
            found["kl"] = torch.full_like(pairs.chosen.detach(), totals.kl_baseline)
        return loss, found
