"""Problems in what the probes of the self-test measured, each with what to do about it; pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.configs.selftest import Measured
from containers.contracts.hardware import GpuProfile
from containers.contracts.records import CheckFinding
from containers.formatting import size
from tasks.plan.inputs.gpu_speed import Card

LEAST_SHARE, LEAST_OF_MEDIAN = 0.45, 0.90
MOST_CONTEXT_S, MOST_HELD_S, MOST_START_S = 30.0, 60.0, 180.0
LEAST_BUS, LEAST_BUS_PCIE = 100e9, 5e9
LEAST_FROM_HOST = 5e9
LEAST_OF_PAIRS, MOST_SHM = 0.5, 0.5
MOST_ABOVE_PLAN = 1.15
LEAST_COSINE, LEAST_COSINE_FLOAT32 = 0.99, 0.9999
MOST_APART = 1e-2
LEAST_AFTER_LOAD = 0.90
# Errors of log-probabilities: in roundings of the type, and at least.
_ROUNDINGS, _LEAST_ERROR = 8, 1e-4

# What is wrong, and what to do about it.
Problem = tuple[str, str]


@dataclass(frozen=True)
class Facts:
    """What is known of the machine beside the measurements.

    Attributes:
        card: its data sheet; None for one that is not in the table, and without GPUs.
        has_nvlink: whether every card has NVLinks; None where that is not reported.
        check_rows: of the system check about cards and driver.
    """

    profile: GpuProfile
    card: Card | None = None
    has_nvlink: bool | None = None
    check_rows: tuple[CheckFinding, ...] = ()


def nothing_more(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """What passes if it did not break off."""
    return ()


def cards(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """Cards or a driver with which no stage would start."""
    bad = (row for row in facts.check_rows if row.verdict == "failure")
    return [(f"{row.name}: {row.found}", row.advice) for row in bad]


def container(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """A contract that is not kept, and caches from which nothing can be loaded."""
    found: list[Problem] = []
    if measured.one("drifted"):
        found.append(
            (
                "; ".join(note for note in measured.notes if ": wanted " in note),
                "Something between the orchestrator and the program's start changed it: look at the Docker daemon and "
                "at the limits of this shell (`ulimit -a`).",
            )
        )
    if barred := [value.of for value in measured.figures("loads") if not value.value]:
        found.append(
            (
                f"compiled kernels cannot be loaded from {', '.join(barred)}",
                "The disk of run.store_dir is mounted `noexec`, or full: name a folder on another disk.",
            )
        )
    return found


def memory(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """Words that came back changed, slow cards, and one that is slower than the others."""
    found: list[Problem] = []
    for value in measured.figures("wrong_words"):
        if value.value:
            found.append(
                (
                    f"{value.of}: {value.value:,.0f} words came back changed",
                    f"The memory of {value.of} is faulty: take it out of CUDA_VISIBLE_DEVICES and have it replaced.",
                )
            )
    for value in measured.figures("context"):
        if value.value > MOST_CONTEXT_S:
            found.append(
                (
                    f"{value.of}: {value.value:.0f} s until it took its first number",
                    "The driver starts each GPU anew: keep it loaded (`nvidia-smi -pm 1`).",
                )
            )
    sheet = f"{LEAST_SHARE:.0%} of the data sheet ({facts.card.name})" if facts.card else ""
    flops, memory_rate = (facts.card.tflops * 1e12, facts.card.terabytes * 1e12) if facts.card else (0.0, 0.0)
    look = "Look at power limit, temperature and other programs (`nvidia-smi -q -d CLOCK,POWER,TEMPERATURE`)."
    found += _slow(measured, _Rate("product", "products", 1e12, "TFLOP/s"), LEAST_SHARE * flops, sheet, look)
    found += _slow(measured, _Rate("copy", "copies on the card", 1e9, "GB/s"), LEAST_SHARE * memory_rate, sheet, look)
    slot = (
        "Its slot has few lanes: compare them with the others' (`nvidia-smi -q`, Link Width), and seat the card anew."
    )
    found += _slow(measured, _Rate("from_host", "copies from the host", 1e9, "GB/s"), LEAST_FROM_HOST, "", slot)
    return found


@dataclass(frozen=True)
class _Rate:
    """A measured rate: its figure, its name for people, and its unit, of which `scale` are one of the figure's."""

    figure: str
    name: str
    scale: float
    unit: str


def _slow(measured: Measured, rate: _Rate, least: float, why: str, advice: str) -> Sequence[Problem]:
    """Cards whose rate is under `least`, or far under the median of all cards."""
    found: list[Problem] = []
    values = measured.figures(rate.figure)
    middle = statistics.median(value.value for value in values) if values else 0.0
    for value in values:
        told = f"{value.of}: {rate.name} at {value.value / rate.scale:.0f} {rate.unit}"
        if value.value < least:
            found.append((f"{told}, under {least / rate.scale:.0f}{f', {why}' if why else ''}", advice))
        elif value.value < LEAST_OF_MEDIAN * middle:
            found.append(
                (
                    f"{told}, {value.value / middle:.0%} of the median of all cards",
                    f"Every step waits for {value.of}: compare its clocks and slot with the others' (`nvidia-smi -q`).",
                )
            )
    return found


def kernels(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """Errors beyond rounding."""
    rounding = measured.one("rounding") or 0.0
    allowed = max(_LEAST_ERROR, _ROUNDINGS * rounding)
    wrong = [value for value in measured.values if value.unit == "of the largest" and not value.value <= allowed]
    return [
        (
            f"{value.name} are {value.value:.2g} of the largest away from float64, more than {allowed:.2g}",
            "Compiled kernels are wrong here: use the stage image (`make image`) or the versions of pyproject.toml.",
        )
        for value in wrong
    ]


def connections(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """A slow bus, a pair of ranks that is slower than the others, and shared memory that is nearly full."""
    found: list[Problem] = []
    buses, pairs = measured.figures("bus"), measured.figures("pair")
    middle = statistics.median(value.value for value in pairs) if pairs else 0.0
    least = 0.0
    if facts.profile.num_gpus:
        # Cards that are bridged in pairs have links too, and a ring of all goes over PCIe.
        all_linked = facts.has_nvlink and (not pairs or middle >= LEAST_BUS)
        least = LEAST_BUS if all_linked else LEAST_BUS_PCIE
    if buses and buses[-1].value < least:
        found.append(
            (
                f"all-reduces of {buses[-1].of} at {buses[-1].value / 1e9:.1f} GB/s, under {least / 1e9:.0f}",
                "Look at `nvidia-smi topo -m`; try nccl.p2p_disable in the GPU profile, and compare.",
            )
        )
    if facts.profile.num_gpus:
        found += [
            (
                f"{value.of}: {value.value / 1e9:.1f} GB/s, {value.value / middle:.0%} of the median pair",
                "A link between these two is slow or down: look at `nvidia-smi nvlink -s` and `nvidia-smi topo -m`.",
            )
            for value in pairs
            if value.value < LEAST_OF_PAIRS * middle
        ]
    used, of = measured.one("shm_used") or 0.0, measured.one("shm_size") or 0.0
    if used > MOST_SHM * of:
        found.append(
            (
                f"{size(used)} of {size(of)} of /dev/shm were used",
                f"Raise shm_size_gib of profile `{facts.profile.name}` (now {facts.profile.shm_size_gib:g}).",
            )
        )
    return found


def step(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """A peak of memory beyond the plan's."""
    peak, planned = measured.one("peak"), measured.one("planned")
    if peak is None or planned is None or peak <= MOST_ABOVE_PLAN * planned:
        return ()
    return [
        (
            f"the peak, {size(peak)}, is {peak / planned - 1:.0%} above the plan's {size(planned)}",
            "The plan is too low for this model: leave room (pack_tokens, gradient_checkpointing), and report it.",
        )
    ]


def numbers(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """Gradients that point elsewhere, and losses that differ."""
    found: list[Problem] = []
    for value in measured.figures("gradients"):
        least = LEAST_COSINE_FLOAT32 if "float32, packed" in value.of else LEAST_COSINE
        if not value.value >= least:
            found.append(
                (
                    f"{value.of}: gradients have a cosine of {value.value:.4f}, under {least}",
                    "Training would differ from what was tested: set `pack: false` in the stages, and report it.",
                )
            )
    for value in measured.figures("loss"):
        if not value.value <= MOST_APART:
            found.append(
                (
                    f"{value.of}: the loss is {value.value:.2%} away, more than {MOST_APART:.0%}",
                    "Training would differ from what was tested: set `pack: false` in the stages, and report it.",
                )
            )
    return found


def one_rank(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """A loss of all ranks that is not that of one."""
    apart = measured.one("first_loss")
    if apart is None or apart <= MOST_APART:
        return ()
    why = f"the first loss of all ranks is {apart:.2%} from that of one rank on the same pairs"
    return [(why, "The ranks do not train as one would: look at the row `connections`, and report it.")]


def resume(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """A resume that began again, or that gave other weights."""
    found: list[Problem] = []
    if not measured.one("resumed_from_step"):
        found.append(("it began again at step 0", "Checkpoints were lost: look at the disk of run.store_dir."))
    apart = measured.one("relative")
    if not measured.one("same_weights") and (apart is None or apart > MOST_APART):
        far = "cannot be compared" if apart is None else f"are {apart:.2%} from those of the other"
        found.append((f"weights of the resumed training {far}", "A resume changes results here: report it."))
    return found


def rollouts(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """An engine that starts slowly."""
    return [
        (
            f"{value.of} took {value.value:.0f} s to start",
            "Each stage that uses it waits as long: look at the disk of run.store_dir, where its model and its caches "
            "lie, and at the log for what it compiled.",
        )
        for value in measured.figures("start")
        if value.value > MOST_START_S
    ]


def signals(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """Checkpoints that were lost, a stop that was none, and memory that was not given back."""
    found: list[Problem] = []
    for value in measured.figures("checkpoints"):
        if not value.value:
            found.append((f"no whole checkpoint after {value.of}", "Look at the disk of run.store_dir, and report it."))
    if measured.one("ended_as_cancelled") == 0:
        found.append(("it did not end as cancelled after SIGTERM", "A stop would lose steps here: report it."))
    for value in measured.figures("memory_held"):
        if value.value >= MOST_HELD_S:
            found.append(
                (
                    f"after {value.of} the cards' memory was held for {value.value:.0f} s and more",
                    "A process outlived the program: look at `nvidia-smi`; a container without an init keeps them.",
                )
            )
    return found


def load(measured: Measured, facts: Facts) -> Sequence[Problem]:
    """Cards that slow down or make errors under load."""
    found: list[Problem] = []
    before, after = measured.one("at_first"), measured.one("at_last")
    if before and after and after < LEAST_AFTER_LOAD * before:
        found.append(
            (
                f"after a minute of full load {after / before:.0%} of the speed is left",
                "The cards slow down: look at cooling and power limit (`nvidia-smi -q -d PERFORMANCE`).",
            )
        )
    for name, what in (("throttled", "slowed down by heat or power"), ("new_errors", "had uncorrected ECC errors")):
        for value in measured.figures(name):
            if value.value:
                advice = "See to its cooling and its power limit." if name == "throttled" else "Have it replaced."
                found.append((f"{value.of} {what} under load", f"{value.of}: {advice}"))
    for value in measured.figures("new_xid"):
        found.append(
            (
                f"{value.of}, since the self-test began",
                "Look at `dmesg | grep -i xid`: reset the card or restart the machine, and have it examined if it "
                "comes again.",
            )
        )
    return found
