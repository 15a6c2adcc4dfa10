"""What is known of the GPUs of this machine, as the driver reports it; pure.

A figure is None where the card or its driver does not report it, which is never taken for zero or for enough.
"""

from dataclasses import dataclass, field

NO_DRIVER = "there is no NVIDIA driver here"
NO_DEVICES = "the driver reports no devices"
_ADVICE_BY_TEXT = (
    ("version mismatch", "The driver was updated under a running kernel module: reboot, or reload the nvidia modules."),
    (
        "couldn't communicate",
        "The driver is not loaded: `modprobe nvidia`, or reinstall the driver, then `nvidia-smi`.",
    ),
    ("driver not loaded", "The driver is not loaded: `modprobe nvidia`, or reinstall the driver, then `nvidia-smi`."),
    ("is lost", "A GPU fell off the bus: reboot; if it comes again, replace the card or its riser."),
    (
        "no devices",
        "The driver runs but sees no GPU: check `lspci | grep -i nvidia` and what was passed into this host.",
    ),
    (
        "did not answer",
        "The driver hangs, or starts each GPU anew for each question: keep it loaded (`nvidia-smi -pm 1`); if that "
        "does not help, look at `dmesg | grep -i xid`; a reboot usually helps.",
    ),
    (NO_DRIVER, "Install the NVIDIA driver, or choose a GPU profile without GPUs."),
)


@dataclass(frozen=True)
class GpuProcess:
    """A compute process on a GPU; `memory_mib` is None where the driver does not say."""

    pid: int
    name: str
    memory_mib: int | None


@dataclass(frozen=True)
class Health:
    """Problems of a GPU beside its counters of memory errors.

    Attributes:
        throttled: why it runs slower than it could now; heat and power only.
        remap_pending: a bad row of memory will be replaced at the next reset.
        remap_failed: a bad row of memory could not be replaced.
        xids: Xid errors in the kernel's log that concern the card itself, as `79 (fell off the bus)`.
        unreadable: figures that the driver failed to read, which is more than that the card has none.
        bad_inforom: its memory of settings is corrupt; it computes well.
    """

    throttled: tuple[str, ...] = ()
    remap_pending: bool = False
    remap_failed: bool = False
    xids: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    bad_inforom: bool = False


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        uuid: empty where the card does not answer.
        bus: its PCI address.
        sick: why no program can use it, as text to follow its number; empty for a card that answers.
        ecc_volatile: uncorrected memory errors since the driver was loaded.
        ecc_aggregate: uncorrected memory errors over the card's life.
        retired_pages: pages retired for double-bit errors.
        retirement_pending: a page will be retired at the next reboot.
        compute_capability: of CUDA, as (9, 0).
        num_links: NVLinks that are up; 0 for a board that has none.
        is_prohibited: its compute mode lets no program use it.
        is_exclusive: its compute mode lets one program at a time use it.
        power_limit_w: that is in force, in W.
        health: further problems; empty where the driver does not report them.
    """

    index: int
    uuid: str
    name: str
    bus: str = ""
    sick: str = ""
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    ecc_volatile: int | None = None
    ecc_aggregate: int | None = None
    retired_pages: int | None = None
    retirement_pending: bool = False
    mig: bool = False
    temperature_c: int | None = None
    compute_capability: tuple[int, int] | None = None
    num_links: int | None = None
    is_prohibited: bool = False
    is_exclusive: bool = False
    power_limit_w: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    health: Health = field(default_factory=Health)


@dataclass(frozen=True)
class GpuState:
    """One sample of a GPU; memory in MiB."""

    uuid: str
    index: int
    utilization_percent: float | None
    memory_used_mib: float | None
    memory_total_mib: float | None
    power_w: float | None
    temperature_c: float | None
    ecc_uncorrected: float | None
    throttled: tuple[str, ...]


@dataclass(frozen=True)
class GpuReport:
    """All GPUs, sick ones among them, or one sentence why they are not known; with a problem there is no list at all.

    Attributes:
        driver: its version; empty without GPU.
        cuda: newest version of CUDA that the driver runs, as (13, 0); None where it was not reported.
        source: what was asked: `NVML` or `nvidia-smi`.
    """

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    driver: str = ""
    cuda: tuple[int, int] | None = None
    source: str = ""

    @property
    def uuids(self) -> tuple[str, ...]:
        """Those of the cards that answer."""
        return tuple(gpu.uuid for gpu in self.gpus if gpu.uuid)

    @property
    def has_none(self) -> bool:
        """Whether this machine certainly has no GPU, rather than one that cannot be read."""
        return NO_DRIVER in self.problem or "no devices" in self.problem.lower()

    @property
    def advice(self) -> str:
        """What to do about the problem; empty where there is none."""
        if not self.problem:
            return ""
        text = self.problem.lower()
        fitting = (advice for sign, advice in _ADVICE_BY_TEXT if sign.lower() in text)
        return next(fitting, "Run `nvidia-smi` by hand; it must list the GPUs and end with exit code 0.")
