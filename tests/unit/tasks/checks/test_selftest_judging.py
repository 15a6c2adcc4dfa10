"""A self-test passes what is right, fails what is not, and says of every failure what to do."""

from dataclasses import replace

import pytest

from containers.contracts.configs.selftest import Measured, Measurement, ProbeResult
from containers.contracts.hardware import GIB, GpuProfile
from containers.contracts.records import CheckFinding
from tasks.checks.selftest.judging import RULES, judged
from tasks.checks.selftest.problems import Facts
from tasks.plan.inputs.gpu_speed import card_named

EIGHT = GpuProfile(name="8x80gb", num_gpus=8, num_processes=8, gpu_memory_gib=80, shm_size_gib=16)
FACTS = Facts(EIGHT, card_named("NVIDIA H100 80GB HBM3"), has_nvlink=True)
PCIE = Facts(EIGHT, card_named("NVIDIA H100 PCIe"), has_nvlink=False)
ON_CPU = Facts(GpuProfile(name="cpu", num_gpus=0, precision="float32", tf32=False))

Figure = tuple[str, float, str, str]


def row(probe: str, *figures: Figure, facts: Facts = FACTS, notes: tuple[str, ...] = ()) -> ProbeResult:
    values = tuple(Measurement(name=name, value=value, unit=unit, of=of) for name, value, unit, of in figures)
    return judged(Measured(probe=probe, values=values, notes=notes), facts)


def products(*tflops: float) -> list[Figure]:
    return [("product", value * 1e12, "FLOP/s", f"GPU {place}") for place, value in enumerate(tflops)]


SHM = ("shm_size", 16.0 * GIB, "bytes", "")
WHOLE = [
    ("checkpoints", 1.0, "whole", "SIGKILL"),
    ("checkpoints", 2.0, "whole", "SIGTERM"),
    ("ended_as_cancelled", 1.0, "yes", ""),
]


@pytest.mark.parametrize(
    ("probe", "figures", "facts"),
    [
        ("cards", [], FACTS),
        ("container", [("drifted", 0.0, "findings", ""), ("loads", 1.0, "yes", "TRITON_CACHE_DIR")], FACTS),
        (
            "memory",
            [("wrong_words", 0.0, "words", "GPU 0"), ("context", 3.0, "s", "GPU 0"), *products(600, 610)],
            FACTS,
        ),
        ("memory", products(0.05), ON_CPU),
        ("kernels", [("rounding", 2**-7, "", ""), ("gradient", 0.03, "of the largest", "")], FACTS),
        ("connections", [("bus", 300e9, "bytes/s", "700 MiB"), ("shm_used", 1.0 * GIB, "bytes", ""), SHM], FACTS),
        ("connections", [("bus", 12e9, "bytes/s", "700 MiB"), SHM], PCIE),
        ("connections", [("bus", 0.3e9, "bytes/s", "25 MiB"), SHM], ON_CPU),
        ("reward_step", [("peak", 29.0, "bytes", ""), ("planned", 26.0, "bytes", "")], FACTS),
        ("policy_step", [("peak", 12.0, "bytes", ""), ("planned", 26.0, "bytes", "")], FACTS),
        ("policy_step", [("peak", 12.0, "bytes", "")], ON_CPU),
        ("numbers", [("gradients", 0.995, "cosine", "policy, bf16, packed beside padded")], FACTS),
        ("one_rank", [("first_loss", 0.002, "relative", "")], FACTS),
        ("resume", [("resumed_from_step", 24.0, "", ""), ("same_weights", 1.0, "yes", "")], FACTS),
        (
            "resume",
            [("resumed_from_step", 24.0, "", ""), ("same_weights", 0.0, "yes", ""), ("relative", 1e-5, "", "")],
            FACTS,
        ),
        ("rollouts", [("start", 95.0, "s", "vllm")], FACTS),
        ("policy_training", [], FACTS),
        ("reload", [("apart", 0.02, "score", "")], FACTS),
        ("signals", [*WHOLE, ("memory_held", 2.0, "s", "SIGKILL")], FACTS),
        (
            "load",
            [("at_first", 6e14, "FLOP/s", ""), ("at_last", 5.8e14, "FLOP/s", ""), ("throttled", 0.0, "yes", "GPU 0")],
            FACTS,
        ),
    ],
)
def test_what_is_as_it_should_be_passes(probe: str, figures: list[Figure], facts: Facts) -> None:
    found = row(probe, *figures, facts=facts)
    assert (found.verdict, found.why, found.advice) == ("passed", "", "")


@pytest.mark.parametrize(
    ("probe", "figures", "why", "advice"),
    [
        ("container", [("drifted", 1.0, "findings", "")], "/dev/shm: wanted 16 GiB", "Docker daemon"),
        ("container", [("loads", 0.0, "yes", "TRITON_CACHE_DIR")], "cannot be loaded from TRITON_CACHE_DIR", "noexec"),
        ("memory", [("wrong_words", 7.0, "words", "GPU 5")], "GPU 5: 7 words came back changed", "have it replaced"),
        ("memory", [("context", 41.0, "s", "GPU 0")], "41 s until it took its first number", "nvidia-smi -pm 1"),
        ("memory", products(600, 300), "GPU 1: products at 300 TFLOP/s, under 445, 45%", "power limit"),
        ("memory", products(700, 690, 600), "GPU 2: products at 600 TFLOP/s, 87% of the median", "waits for GPU 2"),
        (
            "memory",
            [("copy", 1.2e12, "bytes/s", "GPU 0")],
            "copies on the card at 1200 GB/s, under 1508",
            "power limit",
        ),
        ("memory", [("from_host", 3e9, "bytes/s", "GPU 3")], "from the host at 3 GB/s, under 5", "lanes"),
        (
            "kernels",
            [("rounding", 2**-7, "", ""), ("gradient", 0.2, "of the largest", "")],
            "gradient are 0.2",
            "make image",
        ),
        ("connections", [("bus", 40e9, "bytes/s", "700 MiB"), SHM], "700 MiB at 40.0 GB/s, under 100", "topo -m"),
        ("connections", [("shm_used", 9.0 * GIB, "bytes", ""), SHM], "9.00 GiB of 16.0 GiB", "Raise shm_size_gib"),
        (
            "connections",
            [("pair", value, "bytes/s", f"rank {place}") for place, value in enumerate((200e9, 210e9, 20e9))],
            "rank 2: 20.0 GB/s, 10% of the median pair",
            "nvlink -s",
        ),
        (
            "reward_step",
            [("peak", 31.0, "bytes", ""), ("planned", 26.0, "bytes", "")],
            "19% above the plan's",
            "pack_tokens",
        ),
        (
            "numbers",
            [("gradients", 0.9, "cosine", "policy, bf16, packed beside padded")],
            "a cosine of 0.9000",
            "pack: false",
        ),
        (
            "numbers",
            [("gradients", 0.999, "cosine", "policy, float32, packed beside padded")],
            "under 0.9999",
            "pack: false",
        ),
        (
            "numbers",
            [("loss", 0.03, "relative", "policy, bf16")],
            "bf16: the loss is 3.00% away",
            "pack: false",
        ),
        ("one_rank", [("first_loss", 0.05, "relative", "")], "5.00% from that of one rank", "connections"),
        (
            "resume",
            [("resumed_from_step", 0.0, "", ""), ("same_weights", 1.0, "yes", "")],
            "began again at step 0",
            "store_dir",
        ),
        (
            "resume",
            [("resumed_from_step", 9.0, "", ""), ("same_weights", 0.0, "yes", ""), ("relative", 0.2, "", "")],
            "are 20.00% from",
            "report it",
        ),
        ("resume", [("resumed_from_step", 9.0, "", "")], "cannot be compared", "report it"),
        ("signals", [("checkpoints", 0.0, "whole", "SIGKILL")], "no whole checkpoint after SIGKILL", "store_dir"),
        ("signals", [("ended_as_cancelled", 0.0, "yes", "")], "did not end as cancelled after SIGTERM", "report it"),
        ("rollouts", [("start", 200.0, "s", "vllm")], "vllm took 200 s to start", "store_dir"),
        (
            "load",
            [("new_xid", 1.0, "error", "GPU 3: Xid 79 (fell off the bus)")],
            "GPU 3: Xid 79 (fell off the bus), since the self-test began",
            "dmesg",
        ),
        ("signals", [("memory_held", 60.1, "s", "SIGKILL")], "after SIGKILL the cards' memory was held", "nvidia-smi"),
        (
            "load",
            [("at_first", 6e14, "FLOP/s", ""), ("at_last", 5e14, "FLOP/s", "")],
            "83% of the speed is left",
            "cooling",
        ),
        ("load", [("throttled", 1.0, "yes", "GPU 2")], "GPU 2 slowed down by heat or power", "cooling"),
        ("load", [("new_errors", 3.0, "errors", "GPU 2")], "GPU 2 had uncorrected ECC errors", "Have it replaced"),
    ],
)
def test_what_is_not_fails_with_the_reason_and_what_to_do(
    probe: str, figures: list[Figure], why: str, advice: str
) -> None:
    found = row(probe, *figures, notes=("/dev/shm: wanted 16 GiB, found 64 MiB.",))
    assert found.verdict == "failed"
    assert why in found.why
    assert advice in found.advice


def test_a_card_that_the_system_check_refuses_fails_with_its_advice() -> None:
    rows = [
        CheckFinding(name=f"GPU {place}", found=found, wanted="healthy", verdict=verdict, advice=advice)
        for place, (found, verdict, advice) in enumerate((("fine", "ok", ""), ("it is lost", "failure", "Reboot.")))
    ]
    found = row("cards", facts=replace(FACTS, check_rows=tuple(rows)))
    assert (found.verdict, found.why, found.advice) == ("failed", "GPU 1: it is lost", "Reboot.")


@pytest.mark.parametrize("probe", RULES)
def test_a_probe_that_broke_off_failed_and_has_advice(probe: str) -> None:
    found = judged(Measured(probe=probe, error="CUDA error: an illegal memory access"), FACTS)
    assert (found.verdict, found.why) == ("failed", "CUDA error: an illegal memory access")
    assert found.advice and found.passes


@pytest.mark.parametrize("probe", RULES)
def test_a_probe_that_does_not_apply_never_passes(probe: str) -> None:
    found = judged(Measured(probe=probe, refused="the profile has no GPUs"), ON_CPU)
    assert (found.verdict, found.why) == ("not run", "the profile has no GPUs")
