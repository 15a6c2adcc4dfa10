"""Facts about each stage: its devices, the model that it trains, and the gate that its figures decide."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from containers.contracts.names import StageName

# The models that a pipeline trains and judges; also the names of their gates and of their champions.
ModelKind: TypeAlias = Literal["reward_model", "policy"]


class Devices(Enum):
    """Devices of a stage, and so the part of a GPU profile that can change its result."""

    NONE = "the CPU: it sorts, counts and draws, the same on all hardware"
    ONE_GPU = "one GPU where the profile has GPUs"
    ALL_GPUS = "all GPUs of the profile, over which one program spreads its forwards"
    ALL_RANKS = "all ranks of the profile"


@dataclass(frozen=True)
class StageFacts:
    """Facts about one stage.

    Attributes:
        is_optional: a run is complete without it.
        may_divide: its ranks divide the model among them if the profile says so. A policy that writes completions in
            every step is gathered for that, so its own configuration decides.
        trains: the model that it trains; None: none that a gate judges.
        judges: the model whose gate decides by its figures; None: no gate does.
    """

    devices: Devices = Devices.NONE
    is_optional: bool = False
    may_divide: bool = False
    trains: ModelKind | None = None
    judges: ModelKind | None = None


STAGE_FACTS: Mapping[StageName, StageFacts] = {
    StageName.CHECK_SYSTEM: StageFacts(),
    StageName.FILTER_DATASET: StageFacts(),
    StageName.FILTER_PROMPTS: StageFacts(is_optional=True),
    StageName.FILTER_DEMONSTRATIONS: StageFacts(is_optional=True),
    StageName.BUILD_BASE_MODEL: StageFacts(is_optional=True),
    StageName.TRAIN_SFT: StageFacts(Devices.ALL_RANKS, is_optional=True, may_divide=True),
    StageName.TRAIN_REWARD_MODEL: StageFacts(Devices.ALL_RANKS, may_divide=True, trains="reward_model"),
    StageName.EVALUATE_REWARD_MODEL: StageFacts(Devices.ALL_GPUS, judges="reward_model"),
    StageName.COMPUTE_REFERENCE: StageFacts(Devices.ALL_RANKS, is_optional=True),
    StageName.TRAIN_DPO: StageFacts(Devices.ALL_RANKS, is_optional=True, may_divide=True, trains="policy"),
    StageName.TRAIN_POLICY: StageFacts(Devices.ALL_RANKS, trains="policy"),
    StageName.ANSWER_SETS: StageFacts(Devices.ALL_GPUS, is_optional=True),
    StageName.EVALUATE_SETS: StageFacts(Devices.ONE_GPU, is_optional=True),
    StageName.SAMPLE_COMPLETIONS: StageFacts(Devices.ALL_GPUS),
    StageName.EVALUATE_POLICY: StageFacts(Devices.ALL_GPUS, judges="policy"),
    StageName.COMPARE_POLICIES: StageFacts(Devices.ONE_GPU, is_optional=True),
    StageName.WRITE_REPORT: StageFacts(),
}
# Model → the stage that judges it.
JUDGED_BY: Mapping[ModelKind, StageName] = {
    facts.judges: stage for stage, facts in STAGE_FACTS.items() if facts.judges is not None
}
