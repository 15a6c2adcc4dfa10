"""Whether completions were sampled from the policy: by what their engine says of them, and by how likely they are."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from torch import Tensor

from containers.contracts.configs.train_policy import SamplingCorrection, TrainPolicyConfig
from containers.distributed.sums import DeviceSums
from containers.formatting import percent
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.losses.importance import effective_share
from containers.losses.ratios import TokenOwners
from containers.rollouts.engines import Rollouts

# Rollouts whose surprise is looked at together, and standard errors beyond which it is no chance.
_WINDOW, _ERRORS = 8, 6.0
# Nats a token: less does no harm.
_LEAST_SURPRISE = 0.02
# What is added up over tokens for this: of new completions, and in each update.
SURPRISE = ("surprise", "surprise_squares", "surprise_tokens")
SUMS = (*SURPRISE, "sampling_kl", "weights", "weight_squares", "weighted")


def add_surprise(sums: DeviceSums, logps: Tensor, entropies: Tensor, owners: TokenOwners) -> None:
    """Add how much less likely tokens are than samples would be: of each completion the sum of −log p − entropy.

    Its mean is 0 for samples of the policy, however they end, and its square is its variance.

    Args:
        sums: those of `SURPRISE`.
        logps: [N] log-probabilities of the tokens.
        entropies: [N] of the distributions that they were drawn from.
        owners: of the N tokens.
    """
    found = owners.sums(-logps - entropies)
    sums.add("surprise", found)
    sums.add("surprise_squares", found.square())
    sums.add("surprise_tokens", len(logps))


@dataclass
class SamplingCheck:
    """Follows the completions of an engine.

    Attributes:
        settings: of the weights.
        most_apart: bound on the KL of the engine to the policy, in nats a token; None: the engine says nothing of its
            tokens, since it is the policy itself.
        recent: of the newest rollouts, the sum of surprises over their completions, that of their squares, and tokens.
    """

    settings: SamplingCorrection
    most_apart: float | None = None
    recent: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def take(self, total: Mapping[str, float], *, is_new: bool) -> dict[str, float]:
        """Return the curves of an update.

        Args:
            total: its sums over all ranks.
            is_new: it is the first of its rollout, and the surprise is that of the policy that wrote it.

        Raises:
            StageError: the completions were sampled from something else.
        """
        found = dict[str, float]()
        if is_new:
            self.recent.append((total["surprise"], total["surprise_squares"], total["surprise_tokens"]))
            found["surprise"] = total["surprise"] / total["surprise_tokens"]
        if self.most_apart is None:
            return found
        found["sampling_kl"] = total["sampling_kl"] / total["tokens"]
        found["effective_fraction"] = effective_share(total["weights"], total["weight_squares"], total["weighted"])
        self._demand(found)
        return found

    def _demand(self, found: Mapping[str, float]) -> None:
        apart, effective = found["sampling_kl"], found["effective_fraction"]
        if not apart <= (self.most_apart or 0.0):
            raise StageError(
                f"the engine's log-probabilities of the tokens that it wrote are {apart:.2g} nats a token from the "
                f"policy's (KL), more than {self.most_apart:.2g}, ten times what was measured at the start: it has "
                f"other adapters, or another temperature. {_ELSE}"
            )
        if effective < self.settings.minimum_effective_fraction:
            raise StageError(
                f"the weights that make up for the engine leave {percent(effective)} of the tokens "
                f"(train_policy.sampling_correction.minimum_effective_fraction is "
                f"{percent(self.settings.minimum_effective_fraction)}): few of them would decide the step. {_ELSE}"
            )
        gap, squares, tokens = (sum(part) for part in zip(*self.recent, strict=True)) if self.recent else (0, 0, 0)
        if squares and abs(gap) > _ERRORS * sqrt(squares) and abs(gap) > _LEAST_SURPRISE * tokens:
            how = "likelier" if gap < 0 else "less likely"
            raise StageError(
                f"the tokens of {len(self.recent)} rollouts are {abs(gap) / tokens:.2g} nats {how} under the policy "
                f"than samples from it would be, {abs(gap) / sqrt(squares):.0f} standard errors: the engine samples at "
                f"another temperature, or from a part of the distribution. {_ELSE}"
            )


def start_check(
    context: StageContext, config: TrainPolicyConfig, rollouts: Rollouts | None, policy: Any
) -> SamplingCheck:
    """Try the engine on the policy with its adapters, if it is a program of its own.

    Raises:
        StageError: it does not use them as the policy does.
    """
    if rollouts is None or rollouts.trial is None:
        return SamplingCheck(config.sampling_correction)
    most_apart = rollouts.trial(policy)
    context.recorder.note(
        f"The engine uses the policy's adapters as the policy does. Its probabilities may be {most_apart:.2g} nats a "
        "token from the policy's (KL); beyond that, training ends."
    )
    return SamplingCheck(config.sampling_correction, most_apart)


_ELSE = "Use train_policy.rollout_engine: shared_prompts, or correct the engine."
