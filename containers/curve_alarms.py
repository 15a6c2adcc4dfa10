"""Known failures of a policy's training that its curves show, each as a sentence: told while it trains, and reported.

The bounds are coarse: they compare the means of the newest points with those of the first, and tell what is far off.
Sources: falling likelihood of chosen completions, Pal et al. 2024 (DPOP), arXiv:2402.13228; entropy collapse and
exploding lengths, Yu et al. 2025 (DAPO), arXiv:2503.14476.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Points = Sequence[float]
# Points whose mean is compared, at each end of a curve.
_WINDOW = 5
# Nats by which a completion's log-ratio must have fallen, or by which a mean KL must lie below 0, to be no noise.
_NATS = 1.0


def alarms(curves: Mapping[str, Points]) -> dict[str, str]:
    """Return a sentence for each failure that the curves show, by its name; empty if they show none.

    Args:
        curves: by name, the values in the order of their steps; only those of training.
    """
    found = {}
    for name, check in _CHECKS.items():
        if text := check(curves):
            found[name] = text
    return found


@dataclass
class AlarmWatch:
    """Tells each alarm once while a training goes on."""

    _curves: dict[str, list[float]] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def new(self, point: Mapping[str, float]) -> list[str]:
        """Take in the newest values of some curves, and return the sentences of alarms that were not told yet."""
        for name, value in point.items():
            self._curves.setdefault(name, []).append(value)
        fresh = {name: text for name, text in alarms(self._curves).items() if name not in self._told}
        self._told |= fresh.keys()
        return list(fresh.values())


def _ends(values: Points) -> tuple[float, float] | None:
    """Return the means of the first and of the newest points; None if there are too few to tell them apart."""
    if len(values) < 2 * _WINDOW:
        return None
    return sum(values[:_WINDOW]) / _WINDOW, sum(values[-_WINDOW:]) / _WINDOW


def _newest(values: Points) -> float | None:
    return sum(values[-_WINDOW:]) / _WINDOW if len(values) >= _WINDOW else None


def _chosen_fall(curves: Mapping[str, Points]) -> str:
    chosen, rejected = (_newest(curves.get(f"{side}_log_ratio", ())) for side in ("chosen", "rejected"))
    if chosen is None or rejected is None or chosen > -_NATS or chosen > rejected / 2:
        return ""
    return (
        f"The chosen completions become less likely as well: their log-ratio is {chosen:.3g} nats, that of the "
        f"rejected ones {rejected:.3g}. The policy moves away from both, to texts that no pair has. Lower "
        "optimizer.learning_rate, raise beta, or set sft_weight."
    )


def _lengths(curves: Mapping[str, Points]) -> str:
    ends = _ends(curves.get("completion_length", ()))
    if ends is None or ends[0] / 2 < ends[1] < 2 * ends[0]:
        return ""
    way, cure = ("grow", "give `length` a weight") if ends[1] > ends[0] else ("shrink", "look at what is rewarded")
    return (
        f"The completions {way}: from {ends[0]:.3g} to {ends[1]:.3g} tokens. Read some (`rlhf step`); {cure}, or "
        "raise beta."
    )


def _entropy(curves: Mapping[str, Points]) -> str:
    ends = _ends(curves.get("entropy", ()))
    if ends is None or ends[1] > ends[0] / 10:
        return ""
    return (
        f"The entropy is nearly gone: {ends[1]:.3g} nats a token, {ends[0]:.3g} at the start. Such a policy writes the "
        "same again and again, and learns no more. Lower optimizer.learning_rate, or raise beta."
    )


def _identical(curves: Mapping[str, Points]) -> str:
    share = _newest(curves.get("identical_completions_fraction", ()))
    # Short answers are often the same, and right.
    if share is None or share < 0.9:
        return ""
    return (
        f"{share:.0%} of the completions equal another one of their prompt, so they compare nothing. Raise "
        "temperature or beta, or take harder prompts."
    )


def _no_signal(curves: Mapping[str, Points]) -> str:
    share = _newest(curves.get("prompts_without_signal_fraction", ()))
    if share is None or share < 0.9:
        return ""
    return (
        f"On {share:.0%} of the prompts all completions have the same reward, so nearly no step teaches anything. "
        "Take prompts that are neither always nor never solved (filter_prompts.min_difficulty, max_difficulty)."
    )


def _negative_kl(curves: Mapping[str, Points]) -> str:
    kl = _newest(curves.get("kl", ()))
    if kl is None or kl > -_NATS:
        return ""
    return (
        f"The KL to the reference is {kl:.3g} nats, and a KL cannot be below 0: the completions were not drawn from "
        "the distribution that is trained. Look at rollout_engine, temperature and the chat template."
    )


_CHECKS = {
    "chosen log-ratio": _chosen_fall,
    "length": _lengths,
    "entropy": _entropy,
    "identical completions": _identical,
    "no signal": _no_signal,
    "negative KL": _negative_kl,
}
