"""The choice between packed and padded rows for a trainer."""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from containers.contracts.hardware import BatchPlan
from containers.distributed.ranks import any_rank
from containers.harness.context import StageContext

TrainerT = TypeVar("TrainerT")


@dataclass(frozen=True)
class Packing(Generic[TrainerT]):
    """A trainer class with its batch plan and arguments.

    Attributes:
        arguments: arguments that only this trainer takes.
        batch: with packs, one batch of all examples of a rank in a step; with padded rows, accumulated batches of the
            device's size.
    """

    trainer: type[TrainerT]
    batch: BatchPlan
    arguments: dict[str, Any] = field(default_factory=dict)


def packed_in_one(trainer: type[TrainerT], batch: BatchPlan, *, pack_tokens: int) -> Packing[TrainerT]:
    """Return packs of at most `pack_tokens`, made from all examples of a rank in a step."""
    of_a_step = batch.per_device_batch_size * batch.gradient_accumulation_steps
    one = batch.model_copy(update={"per_device_batch_size": of_a_step, "gradient_accumulation_steps": 1})
    return Packing(trainer, one, {"pack_tokens": pack_tokens})


def cannot_pack(context: StageContext, what: str, *, reason: str) -> bool:
    """Whether any rank cannot pack; if so, it is noted.

    Args:
        what: `Pairs` or `Completions`.
        reason: why this rank cannot, as a clause; empty: it can.
    """
    if not any_rank(bool(reason)):
        return False
    context.recorder.note(f"{what} are computed as padded rows: {reason or 'another rank cannot pack them'}.")
    return True
