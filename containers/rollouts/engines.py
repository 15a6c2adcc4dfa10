"""Rollout engines: they generate the policy's completions during training, and start by their configured name.

Each engine is its own module, with a `start` that takes the arguments of `start_rollouts`; the registry names it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

from transformers import PreTrainedModel

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.registries import ROLLOUT_ENGINES
from containers.harness.context import StageContext

# While this context is open, the policy's `generate` is the engine's. The policy: a causal model, or adapters on one.
Writing: TypeAlias = Callable[[Any], AbstractContextManager[None]]


@dataclass(frozen=True)
class Rollouts:
    """A started rollout engine.

    Attributes:
        writing: context around each call of the policy's `generate`.
        close: ends what the engine started.
        sampling: returns log-probabilities of the tokens that `generate` wrote last, by row; None: the policy itself
            wrote them.
        trial: tries the engine on the policy with its adapters, moved away from the start; returns how far the engine's
            probabilities may be from the policy's, as KL in nats a token. Raises StageError where it is not the policy.
    """

    writing: Writing = nullcontext
    close: Callable[[], None] = lambda: None
    sampling: Callable[[], list[list[float]]] | None = None
    trial: Callable[[Any], float] | None = None


def start_rollouts(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> Rollouts:
    """Start the configured engine, or transformers' generate if the two differ for this model; note which.

    Args:
        model: the policy before it is trained, without adapters.
        prompts: token ids of the prompts that the policy is trained on.

    Raises:
        BadConfigError: vLLM is configured and is not installed, or generates other text than this model.
    """
    started: Rollouts = ROLLOUT_ENGINES[config.rollout_engine](context, config, model, prompts)
    return started


def start_plain(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> Rollouts:
    """Return rollouts by transformers' generate alone."""
    return Rollouts()


@contextmanager
def generating_by(causal: PreTrainedModel, generate: Callable[..., Any]) -> Iterator[None]:
    """Replace the `generate` of a causal model while this is open."""
    causal.generate = generate
    try:
        yield
    finally:
        del causal.generate


def where_the_same(context: StageContext, writing: Writing, how: str, *, reason: str, otherwise: str) -> Rollouts:
    """Return rollouts by `writing`; by transformers' generate if there is a reason against it. Notes which, and why."""
    context.recorder.note(
        f"Completions are generated {otherwise}: {reason}." if reason else f"Completions are generated {how}."
    )
    return Rollouts() if reason else Rollouts(writing)
