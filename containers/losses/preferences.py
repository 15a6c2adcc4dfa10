"""Losses on pairs of completions, of which people chose one: the DPO family.

Each takes the pairs' log-probabilities and the parts of the loss, and returns [B], one loss for each pair. Over a step
it is the mean over all pairs. Only KTO couples pairs: its baseline must be known before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from containers.contracts.configs.parts.preference_losses import PreferenceLoss

_LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class Pairs:
    """What a loss takes of B pairs.

    Attributes:
        chosen, rejected: [B] log-probabilities of the completions under the policy, each the sum over its tokens.
        reference_chosen, reference_rejected: [B] the same under the reference; 0 if the loss has none.
        chosen_tokens, rejected_tokens: [B] tokens of the completions.
        kl_baseline: of KTO: the mean log ratio of completions to prompts that they do not answer, at least 0 (nats).
    """

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor
    kl_baseline: float = 0.0

    @property
    def chosen_ratio(self) -> Tensor:
        """[B] log policy − log reference of the chosen completions."""
        return self.chosen - self.reference_chosen

    @property
    def rejected_ratio(self) -> Tensor:
        """[B] log policy − log reference of the rejected completions."""
        return self.rejected - self.reference_rejected


def margins(pairs: Pairs, parts: PreferenceLoss) -> Tensor:
    """Return [B] the chosen completion's log ratio less the rejected one's; each per token if length_normalised.

    Example: sums −10 and −12 over 5 and 4 tokens, without reference: 2; normalised, −2 − (−3) = 1.
    """
    chosen, rejected = pairs.chosen_ratio, pairs.rejected_ratio
    if parts.length_normalised:
        chosen, rejected = chosen / pairs.chosen_tokens.clamp(min=1), rejected / pairs.rejected_tokens.clamp(min=1)
    return chosen - rejected


def sigmoid(pairs: Pairs, parts: PreferenceLoss) -> Tensor:
    """Return [B] −(1 − ε) log σ(x) − ε log σ(−x) with x = β × margin − γ.

    With γ = 0 it is DPO (arXiv:2305.18290, eq. 7); with ε too it is Mitchell's conservative DPO. Without reference,
    normalised and with γ it is SimPO (arXiv:2405.14734, eq. 6).
    Example: a margin of 0 gives log 2.
    """
    scaled = parts.beta * margins(pairs, parts) - parts.simpo_gamma
    smoothing = parts.label_smoothing
    return -(1 - smoothing) * logsigmoid(scaled) - smoothing * logsigmoid(-scaled)


def robust(pairs: Pairs, parts: PreferenceLoss) -> Tensor:
    """Return [B] (−(1 − ε) log σ(x) + ε log σ(−x)) / (1 − 2ε) with x = β × margin.

    Its mean is that of DPO on pairs the right way round if a share ε is the wrong way round. Source: arXiv:2403.00409.
    """
    scaled, smoothing = parts.beta * margins(pairs, parts), parts.label_smoothing
    return (-(1 - smoothing) * logsigmoid(scaled) + smoothing * logsigmoid(-scaled)) / (1 - 2 * smoothing)


def hinge(pairs: Pairs, parts: PreferenceLoss) -> Tensor:
    """Return [B] max(0, 1 − β × margin). Sources: arXiv:2305.10425 and arXiv:2309.06657."""
    return torch.relu(1 - parts.beta * margins(pairs, parts))


def ipo(pairs: Pairs, parts: PreferenceLoss) -> Tensor:
    """Return [B] (margin − 1 / 2β)². Source: arXiv:2310.12036, eq. 17, where β is τ."""
    return (margins(pairs, parts) - 1 / (2 * parts.beta)).square()


def kto(pairs: Pairs, parts: PreferenceLoss) -> Tensor:
    """Return [B] the mean of 1 − σ(β (chosen ratio − KL)) and 1 − σ(β (KL − rejected ratio)).

    Source: arXiv:2402.01306, section 4, with both weights 1, since there are as many chosen as rejected completions.
    """
    chosen = torch.sigmoid(parts.beta * (pairs.chosen_ratio - pairs.kl_baseline))
    rejected = torch.sigmoid(parts.beta * (pairs.kl_baseline - pairs.rejected_ratio))
    return 1 - (chosen + rejected) / 2


def orpo(pairs: Pairs, parts: PreferenceLoss) -> Tensor:
    """Return [B] −β log σ(log odds of chosen − log odds of rejected); odds of the mean probability of a token.

    The likelihood of the chosen completion is not in it; see `likelihood`. Source: arXiv:2403.07691, eq. 4 to 7.
    """
    chosen = pairs.chosen / pairs.chosen_tokens.clamp(min=1)
    rejected = pairs.rejected / pairs.rejected_tokens.clamp(min=1)
    log_odds = chosen - rejected - (_log_of_rest(chosen) - _log_of_rest(rejected))
    return -parts.beta * logsigmoid(log_odds)


def sft(pairs: Pairs, parts: PreferenceLoss) -> Tensor:
    """Return [B] zeros: nothing is compared, and `likelihood` is all of the loss (Preferred-FT, arXiv:2305.18290)."""
    return torch.zeros_like(pairs.chosen)


def likelihood(pairs: Pairs, parts: PreferenceLoss, *, chosen_tokens: int) -> Tensor:
    """Return the sum over pairs of −sft_weight × log-probability of the chosen completion, per token of the step.

    It keeps the chosen completions likely, which a loss on differences does not. Source: arXiv:2404.19733, eq. 1, with
    the mean over tokens as in TRL's loss `sft`.

    Args:
        chosen_tokens: tokens of the chosen completions of the whole step.
    """
    return -parts.sft_weight * pairs.chosen.sum() / max(chosen_tokens, 1)


def figures(pairs: Pairs, parts: PreferenceLoss) -> dict[str, Tensor]:
    """Return [B] figures of each pair, without gradient; `margin` is in units of reward, β × log ratio.

    `kl_on_pairs` is the mean log ratio of both completions. It is the KL only as far as the policy writes such
    completions.
    """
    with torch.no_grad():
        apart = margins(pairs, parts)
        found = {
            "accuracy": (apart > 0).to(apart.dtype),
            "margin": parts.beta * apart,
            "chosen_logps": pairs.chosen.detach(),
            "rejected_logps": pairs.rejected.detach(),
        }
        if not parts.has_reference:
            return found
        chosen, rejected = pairs.chosen_ratio.detach(), pairs.rejected_ratio.detach()
        ratios = {"chosen_log_ratio": chosen, "rejected_log_ratio": rejected, "kl_on_pairs": (chosen + rejected) / 2}
        return found | ratios


def _log_of_rest(logps: Tensor) -> Tensor:
    """Return log(1 − exp(x)), exact for x near 0 and far below."""
    below = logps.clamp(max=-1e-9)
    return torch.where(below > -_LN_2, (-torch.expm1(below)).log(), torch.log1p(-below.exp()))


OBJECTIVES: Mapping[str, Callable[[Pairs, PreferenceLoss], Tensor]] = {
    "sigmoid": sigmoid,
    "robust": robust,
    "hinge": hinge,
    "ipo": ipo,
    "kto": kto,
    "orpo": orpo,
    "sft": sft,
}
