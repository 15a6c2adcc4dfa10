"""How a trainer computes the examples of a step: packed where the model can, else as padded rows, and noted which."""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from containers.contracts.hardware import BatchPlan
from containers.distributed.ranks import any_rank
from containers.harness.context import StageContext

TrainerT = TypeVar("TrainerT")


@dataclass(frozen=True)
class Packing(Generic[TrainerT]):
    """The choice.

    Attributes:
        arguments: what this trainer takes and others do not.
        batch: packs are cut from all that a rank has in a step; padded rows come in accumulated batches.
    """

    trainer: type[TrainerT]
    batch: BatchPlan
    arguments: dict[str, Any] = field(default_factory=dict)


def padded(trainer: type[TrainerT], batch: BatchPlan) -> Packing[TrainerT]:
    """Padded rows, in batches of the device's size."""
    return Packing(trainer, batch)


def packed_in_one(trainer: type[TrainerT], batch: BatchPlan, *, pack_tokens: int) -> Packing[TrainerT]:
    """Packs of so many tokens, cut from all examples that a rank has in a step."""
    of_a_step = batch.per_device_batch_size * batch.gradient_accumulation_steps
    one = batch.model_copy(update={"per_device_batch_size": of_a_step, "gradient_accumulation_steps": 1})
    return Packing(trainer, one, {"pack_tokens": pack_tokens})


def cannot_pack(context: StageContext, what: str, *, reason: str) -> bool:
    """Whether this rank or another cannot, which is noted.

    Args:
        what: `Pairs` or `Completions`.
        reason: why this rank cannot, a clause; empty: it can.
    """
    if not any_rank(bool(reason)):
        return False
    context.recorder.note(f"{what} are computed as padded rows: {reason or 'another rank cannot pack them'}.")
    return True
