"""What a probe of the self-test is given, and what it returns; each probe is a module with a function `probe`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from containers.contracts.configs.selftest import Measurement, SelftestRequest
from containers.contracts.registries import Registry
from containers.harness.context import StageContext

if TYPE_CHECKING:
    import torch


class NotHereError(Exception):
    """The probe does not apply to this machine, profile or run; the message says why, as a clause."""


@dataclass
class Findings:
    """What a probe measured so far; it is kept if the probe breaks off."""

    values: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, of: str = "") -> None:
        """Keep a figure."""
        self.values.append(Measurement(name=name, value=float(value), unit=unit, of=of))


@dataclass(frozen=True)
class Bench:
    """Where a probe works: the context of a stage, the request, and the rank's device."""

    context: StageContext
    request: SelftestRequest

    @property
    def device(self) -> "torch.device":
        """This rank's GPU, or the CPU."""
        from containers.distributed.devices import compute_device  # imports torch

        return compute_device(self.context.spec.profile)

    @property
    def on_gpu(self) -> bool:
        """Whether the profile has GPUs."""
        return self.context.spec.profile.num_gpus > 0

    @property
    def cards(self) -> dict[str, "torch.device"]:
        """Every device of the profile by name: all GPUs that this program sees, or the CPU.

        Raises:
            MissingPrerequisiteError: the profile has GPUs, and torch sees none.
        """
        import torch

        if self.device.type == "cpu":
            return {"processor": self.device}
        return {f"GPU {place}": torch.device("cuda", place) for place in range(torch.cuda.device_count())}


Probe: TypeAlias = Callable[[Bench, Findings], None]

PROBES = Registry(
    {
        "container": "containers.selftest.container:probe",
        "memory": "containers.selftest.cards:probe",
        "kernels": "containers.selftest.kernels:probe",
        "connections": "containers.selftest.connections:probe",
        "numbers": "containers.selftest.numbers:probe",
        "reward_step": "containers.selftest.reward_step:probe",
        "policy_step": "containers.selftest.policy_step:probe",
        "rollouts": "containers.selftest.rollouts:probe",
        "resume": "containers.selftest.resume:probe",
        "load": "containers.selftest.load:probe",
    }
)
