"""Speed of a GPU for plans: measured by a self-test; else a share of its data sheet, by the card's name or memory.

The figures are NVIDIA's for products of bfloat16 matrices without sparsity, summed in float32, and for memory. Shares
of them were never measured here; NeMo AutoModel reports 41 % for LoRA on an H100.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from containers.contracts.configs.selftest import MeasuredSpeed, Selftest
from containers.contracts.hardware import GpuProfile
from containers.launch.gpus.cards import GpuReport
from containers.launch.gpus.inventory import read_gpus
from containers.launch.gpus.verdicts import is_large_enough, visible_gpus

_FLOPS_SHARE, _MEMORY_SHARE = 0.40, 0.50


@dataclass(frozen=True)
class Card:
    """A kind of card.

    Attributes:
        tflops: 10^12 operations a second in bf16.
        terabytes: of memory read or written in a second.
    """

    name: str
    tflops: float
    terabytes: float


_A100_40GB, _H100, _H200 = Card("A100 40GB", 312, 1.555), Card("H100 SXM", 989, 3.35), Card("H200", 989, 4.8)
_RTX_PRO_6000, _RTX_6000_ADA = Card("RTX PRO 6000 Blackwell", 503, 1.6), Card("RTX 6000 Ada", 364, 0.96)
_RTX_5090, _RTX_4090 = Card("RTX 5090", 210, 1.792), Card("RTX 4090", 165, 1.008)
# The first pattern that is found in a card's name counts, so boards of one chip come before the chip.
_CARDS = (
    (r"B300", Card("B300", 2500, 8.0)),
    (r"B200", Card("B200", 2250, 8.0)),
    (r"GB10\b", Card("GB10", 125, 0.273)),
    (r"H200 NVL", Card("H200 NVL", 835, 4.8)),
    (r"H200|GH200", _H200),
    (r"H100 PCIe", Card("H100 PCIe", 756, 2.0)),
    (r"H100 NVL", Card("H100 NVL", 835, 3.9)),
    (r"H100", _H100),
    (r"H800", Card("H800", 989, 3.35)),
    (r"A100.*40GB", _A100_40GB),
    (r"A100|A800", Card("A100 80GB", 312, 1.935)),
    (r"L40S", Card("L40S", 362, 0.864)),
    (r"L40\b", Card("L40", 181, 0.864)),
    (r"L4\b", Card("L4", 121, 0.3)),
    (r"RTX PRO 6000", _RTX_PRO_6000),
    (r"RTX 6000 Ada", _RTX_6000_ADA),
    (r"RTX A6000", Card("RTX A6000", 155, 0.768)),
    (r"A40\b", Card("A40", 150, 0.696)),
    (r"A30\b", Card("A30", 165, 0.933)),
    (r"A10G?\b", Card("A10", 125, 0.6)),
    (r"RTX 5090", _RTX_5090),
    (r"RTX 4090", _RTX_4090),
    (r"RTX 3090", Card("RTX 3090", 71, 0.936)),
)
# Where no card is named: the usual one of that much memory (GiB, at most).
_BY_MEMORY = (
    (26, _RTX_4090),
    (34, _RTX_5090),
    (42, _A100_40GB),
    (60, _RTX_6000_ADA),
    (90, _H100),
    (110, _RTX_PRO_6000),
)


def card_named(name: str) -> Card | None:
    """The card of that name, as the driver shows it; None for one that is not in the table."""
    return next((card for pattern, card in _CARDS if re.search(pattern, name, re.IGNORECASE)), None)


def card_of(profile: GpuProfile) -> tuple[Card, str]:
    """The card that a plan reckons with, and a clause that says why it is this one."""
    named = card_named(profile.card) if profile.card else None
    if named is not None:
        return named, named.name
    card = next((card for most, card in _BY_MEMORY if profile.gpu_memory_gib <= most), _H200)
    unknown = f"{profile.card} is not in the table of cards, so " if profile.card else ""
    return card, f"{unknown}{card.name} is assumed for {profile.gpu_memory_gib:g} GiB"


def with_card_here(profile: GpuProfile, report: GpuReport | None = None) -> GpuProfile:
    """The profile with the name of this machine's cards, if it names none and those that fit are of one kind.

    Args:
        report: of the GPUs; None: read them.
    """
    if not profile.num_gpus or profile.card:
        return profile
    gpus = (read_gpus() if report is None else report).gpus
    usable = visible_gpus(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    names = {gpu.name for gpu in usable if gpu.name and is_large_enough(gpu, profile.gpu_memory_gib)}
    return profile.model_copy(update={"card": names.pop()}) if len(names) == 1 else profile


class MeasuredProfile(GpuProfile):
    """A profile with the speed of its cards, and the self-test that measured it."""

    speed: MeasuredSpeed
    measured_by: str


def with_measured_speed(profile: GpuProfile, selftests: Iterable[Selftest]) -> GpuProfile:
    """The profile with the speed of the first self-test of such cards in its precision; else the profile itself."""
    for found in of_such_cards(profile, selftests):
        if found.speed is not None:
            by = f"the self-test of {found.host} with profile `{found.profile}` on {found.made_at[:10]}"
            return MeasuredProfile.model_construct(**dict(profile), speed=found.speed, measured_by=by)
    return profile


def of_such_cards(profile: GpuProfile, selftests: Iterable[Selftest]) -> Iterator[Selftest]:
    """The self-tests of cards of the profile's kind, in its precision."""
    return (
        one
        for one in selftests
        if one.num_gpus and profile.num_gpus and one.precision == profile.precision and _are_alike(one, profile)
    )


def missing_selftest(profile: GpuProfile, selftests: Iterable[Selftest]) -> str:
    """A sentence for a run on GPUs that no self-test has measured; empty for other runs."""
    if not profile.num_gpus or any(of_such_cards(profile, selftests)):
        return ""
    return (
        f"No self-test of such GPUs is in the store (profile `{profile.name}`): `rlhf selftest` with the same options "
        "finds in ten minutes what would end this run in hours, and the plan then has measured speeds."
    )


def _are_alike(selftest: Selftest, profile: GpuProfile) -> bool:
    card, _ = card_of(profile)
    known = card_named(selftest.card)
    return profile.card == selftest.card if known is None else known == card


@dataclass(frozen=True)
class GpuSpeed:
    """Speed of one GPU or of the CPU.

    Attributes:
        words: of it, and where it is from.
        block_token_s: of one generated token in one layer of a plain model; None: not measured.
        graph_token_s: of one in one layer by vLLM; None: not measured.
    """

    flops: float
    memory_bytes_per_s: float
    words: str
    is_measured: bool = False
    block_token_s: float | None = None
    graph_token_s: float | None = None


def gpu_speed(profile: GpuProfile) -> GpuSpeed:
    """The speed on that profile: as measured, or on GPUs a share of the card's data sheet."""
    if not profile.num_gpus:
        return GpuSpeed(2.5e10 * profile.num_threads, 1e10, f"25 GFLOP/s a thread, {profile.num_threads} thread(s)")
    if isinstance(profile, MeasuredProfile):
        own = profile.speed
        words = (
            f"{own.flops / 1e12:.0f} TFLOP/s in {profile.precision} and {own.memory_bytes_per_s / 1e12:.2g} TB/s a "
            f"GPU, measured by {profile.measured_by}"
        )
        return GpuSpeed(
            own.flops,
            own.memory_bytes_per_s,
            words,
            is_measured=True,
            block_token_s=own.block_token_s,
            graph_token_s=own.graph_token_s,
        )
    card, which = card_of(profile)
    flops, memory = _FLOPS_SHARE * card.tflops * 1e12, _MEMORY_SHARE * card.terabytes * 1e12
    words = (
        f"{flops / 1e12:.0f} TFLOP/s in bf16 and {memory / 1e12:.2g} TB/s a GPU, {_FLOPS_SHARE:.0%} and "
        f"{_MEMORY_SHARE:.0%} of the data sheet ({which}); not measured on this machine: `rlhf selftest` does"
    )
    return GpuSpeed(flops, memory, words)
