"""What writes the policy's completions while it is trained: started by the name that the configuration gives.

Each engine stands in a module of its own, with a `start` that takes what `start_rollouts` takes; the registry names it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

from transformers import PreTrainedModel

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.registries import ROLLOUT_ENGINES
from containers.harness.context import StageContext

# While it is open, `generate` of the policy is the engine's. The policy may be a causal model or adapters on one.
Writing: TypeAlias = Callable[[Any], AbstractContextManager[None]]


@dataclass(frozen=True)
class Rollouts:
    """How completions are written.

    Attributes:
        writing: opened around each call of the policy's `generate`.
        close: ends what was started for it.
    """

    writing: Writing = nullcontext
    close: Callable[[], None] = lambda: None


def start_rollouts(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> Rollouts:
    """The engine that the configuration names, or transformers' generate where that is not the same; noted which.

    Args:
        model: the policy before it is trained, without adapters.
        prompts: token ids of the prompts that the policy is trained on.

    Raises:
        BadConfigError: vLLM was asked for and is not there, or does not write what this model would.
    """
    started: Rollouts = ROLLOUT_ENGINES[config.rollout_engine](context, config, model, prompts)
    return started


def start_plain(
    context: StageContext, config: TrainPolicyConfig, model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> Rollouts:
    """Transformers' generate by itself."""
    return Rollouts()


def where_the_same(context: StageContext, writing: Writing, how: str, *, reason: str, otherwise: str) -> Rollouts:
    """Rollouts that are written so; by transformers' generate where there is a reason not to. Notes which, and why."""
    context.recorder.note(
        f"Completions are generated {otherwise}: {reason}." if reason else f"Completions are generated {how}."
    )
    return Rollouts() if reason else Rollouts(writing)
