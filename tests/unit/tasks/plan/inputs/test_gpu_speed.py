"""A plan reckons with the card that is there: an A100 is no H100, and an unknown one is named as such."""

import pytest

from containers.contracts.hardware import GpuProfile
from containers.launch.gpus.cards import Gpu, GpuReport
from tasks.plan.inputs.gpu_speed import card_named, card_of, gpu_speed, with_card_here

EIGHTY = GpuProfile(name="1x80gb", num_gpus=1, gpu_memory_gib=80)


@pytest.mark.parametrize(
    ("name", "card", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 989),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756),
        ("NVIDIA H100 NVL", "H100 NVL", 835),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", 312),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB", 312),
        ("NVIDIA H200", "H200", 989),
        ("NVIDIA L40S", "L40S", 362),
        ("NVIDIA L4", "L4", 121),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 364),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell", 503),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 165),
        ("NVIDIA A10G", "A10", 125),
        ("NVIDIA RTX A6000", "RTX A6000", 155),
    ],
)
def test_names_of_the_driver_are_known_cards(name: str, card: str, tflops: float) -> None:
    found = card_named(name)
    assert found is not None
    assert (found.name, found.tflops) == (card, tflops)


def test_speed_is_a_share_of_the_cards_own_data_sheet() -> None:
    h100, a100 = (
        gpu_speed(EIGHTY.model_copy(update={"card": name}))
        for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    )
    assert h100.flops == pytest.approx(0.4 * 989e12)
    assert a100.flops == pytest.approx(0.4 * 312e12)
    assert "40% and 50% of the data sheet (A100 80GB)" in a100.words


@pytest.mark.parametrize(
    ("memory", "card"), [(24, "RTX 4090"), (40, "A100 40GB"), (48, "RTX 6000 Ada"), (80, "H100 SXM"), (140, "H200")]
)
def test_without_a_name_the_memory_decides_and_the_plan_says_so(memory: float, card: str) -> None:
    found, why = card_of(EIGHTY.model_copy(update={"gpu_memory_gib": memory}))
    assert found.name == card
    assert why == f"{card} is assumed for {memory:g} GiB"
    _, odd = card_of(EIGHTY.model_copy(update={"gpu_memory_gib": memory, "card": "Voodoo 3"}))
    assert odd == f"Voodoo 3 is not in the table of cards, so {card} is assumed for {memory:g} GiB"


def test_the_cards_of_this_machine_are_taken_where_they_are_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    a100 = Gpu(0, "GPU-a", "NVIDIA A100-SXM4-80GB", memory_total_mib=81920)
    desktop = Gpu(1, "GPU-b", "NVIDIA GeForce RTX 4090", memory_total_mib=24564)
    h100 = Gpu(2, "GPU-c", "NVIDIA H100 PCIe", memory_total_mib=81559)
    assert with_card_here(EIGHTY, GpuReport(gpus=(a100, desktop))).card == "NVIDIA A100-SXM4-80GB"
    assert with_card_here(EIGHTY, GpuReport(gpus=(a100, h100))).card is None
    named = EIGHTY.model_copy(update={"card": "H200"})
    assert with_card_here(named, GpuReport(gpus=(a100,))) is named
