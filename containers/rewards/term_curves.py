"""The curves of single reward terms."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from containers.losses.advantages import has_spread
from containers.rewards.policy_reward import PolicyReward, Scored

_FEWEST_CORRELATED = 3


def term_curves(reward: PolicyReward, scored: Sequence[Scored], lengths: Tensor) -> dict[str, float]:
    """Return for each term `value_NAME`: the mean of its values, and what else tells whether it teaches anything.

    `value_NAME_std` is the mean standard deviation among the completions of a prompt; `value_NAME_same_fraction` the
    share of prompts whose completions have the same value; `value_NAME_length_correlation` Pearson's, in this batch.
    Completions without a value are left out; `unscorable_fraction` is their share.

    Args:
        scored: R, the K of a prompt adjacent.
        lengths: [R] tokens.
    """
    siblings, found = reward.config.num_generations, dict[str, float]()
    for one in reward.started:
        name = f"value_{one.term.name}"
        values = torch.tensor([row.values[one.term.name] for row in scored], dtype=torch.float64)
        known = ~values.isnan()
        if not known.any():
            continue
        found[name] = float(values[known].mean())
        if siblings > 1:
            rounding = one.reward.rounding(values[known].tolist())
            spread = has_spread(values.view(-1, siblings), known.view(-1, siblings), rounding=rounding)
            found[f"{name}_same_fraction"] = 1.0 - float(spread.double().mean())
            found[f"{name}_std"] = _mean_spread(values.view(-1, siblings), known.view(-1, siblings))
        correlation = _correlation(values[known], lengths[known].double())
        if correlation is not None:
            found[f"{name}_length_correlation"] = correlation
    if reward.unscorable:
        found["unscorable_fraction"] = sum(bool(row.reasons) for row in scored) / len(scored)
    return found


def _mean_spread(values: Tensor, known: Tensor) -> float:
    found = [float(row[has].std()) for row, has in zip(values, known, strict=True) if has.sum() > 1]
    return sum(found) / len(found) if found else 0.0


def _correlation(values: Tensor, lengths: Tensor) -> float | None:
    """Return Pearson's correlation; None where there are too few values, or all are the same."""
    if len(values) < _FEWEST_CORRELATED:
        return None
    one, other = values - values.mean(), lengths - lengths.mean()
    scale = math.sqrt(float(one.square().sum() * other.square().sum()))
    return float((one * other).sum()) / scale if scale > 0 else None
