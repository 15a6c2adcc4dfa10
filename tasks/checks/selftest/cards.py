"""Rows of the self-test that the driver answers: the cards before, and their state under load."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from containers.contracts.configs.selftest import Measurement
from containers.contracts.hardware import GpuProfile
from containers.contracts.records import CheckFinding
from containers.contracts.registries import RuntimeName, capabilities
from containers.launch.docker.state import read_image
from containers.launch.gpus.cards import GpuState
from containers.launch.gpus.drivers import installed_cuda
from containers.launch.gpus.inventory import read_states
from containers.launch.gpus.kernel_log import bus_key, told_xids
from tasks.checks.hardware import gpu_rows

_EVERY_S = 5.0


def card_rows(profile: GpuProfile, runtime: RuntimeName, *, image: str, store_dir: Path) -> tuple[CheckFinding, ...]:
    """What the system check says of cards and driver; nothing for a profile without GPUs."""
    if not profile.num_gpus:
        return ()
    cuda = read_image(image).cuda if capabilities(runtime).runs_image else installed_cuda()
    return tuple(gpu_rows(profile, runtime, store_dir=store_dir, cuda=cuda))


@dataclass
class Watch:
    """Samples the cards' states every few seconds; `sample` is called about once a second.

    Attributes:
        gpu_ids: the cards to look at.
        buses: the PCI address of each.
        before: Xid errors in the kernel's log when the self-test began; None: it could not be read.
    """

    gpu_ids: Sequence[str]
    buses: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[tuple[tuple[int, ...], str]] | None = None
    states: list[GpuState] = field(default_factory=list)
    _looked_at: float = float("-inf")

    def sample(self) -> None:
        """Take a sample if the last one is old enough."""
        if not self.gpu_ids or time.monotonic() - self._looked_at < _EVERY_S:
            return
        self._looked_at = time.monotonic()
        self.states += [state for state in read_states() if state.uuid in self.gpu_ids]

    def measured(self) -> list[Measurement]:
        """Highest temperature and power of each card, whether it was slowed down, and its new ECC and Xid errors."""
        new_xids = self._new_xids()
        found: list[Measurement] = []
        for uuid in self.gpu_ids:
            own = [state for state in self.states if state.uuid == uuid]
            if not own:
                continue
            name = f"GPU {own[0].index}"
            for what, unit, values in (
                ("temperature", "°C", [state.temperature_c for state in own]),
                ("power", "W", [state.power_w for state in own]),
            ):
                if known := [value for value in values if value is not None]:
                    found.append(Measurement(name=what, value=max(known), unit=unit, of=name))
            throttled = any(state.throttled for state in own)
            found.append(Measurement(name="throttled", value=float(throttled), unit="yes", of=name))
            errors = [state.ecc_uncorrected for state in own if state.ecc_uncorrected is not None]
            if errors:
                found.append(Measurement(name="new_errors", value=errors[-1] - errors[0], unit="errors", of=name))
            for error in new_xids.get(bus_key(self.buses.get(uuid, "")), ()):
                found.append(Measurement(name="new_xid", value=1.0, unit="error", of=f"{name}: Xid {error}"))
        return found

    def notes(self) -> tuple[str, ...]:
        """What could not be looked at."""
        unread = self.gpu_ids and (self.before is None or told_xids() is None)
        return ("The kernel's log cannot be read here, so new Xid errors are not known.",) if unread else ()

    def _new_xids(self) -> dict[tuple[int, ...], list[str]]:
        """Xid errors since the self-test began, by the card's bus; of lines that are gone from the log, none."""
        found: dict[tuple[int, ...], list[str]] = {}
        for bus, error in (Counter(told_xids() or ()) - Counter(self.before or ())) if self.before is not None else ():
            found.setdefault(bus, []).append(error)
        return found
