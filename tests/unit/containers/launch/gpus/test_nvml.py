"""NVML answers card by card: a sick card is left out by name, the others work, and nothing unknown counts as good."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.machines import MACHINES

from containers.launch.gpus.cards import GpuReport
from containers.launch.gpus.inventory import read_gpus, read_states
from containers.launch.gpus.verdicts import degraded, faulty, is_healthy, is_large_enough

NOWHERE = Path("/dev/null")


def _report(machine: Callable[[str], None], text: str) -> GpuReport:
    machine(MACHINES.get(text, text))
    return read_gpus(timeout_s=20, kernel_log=NOWHERE)


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_read_and_no_card_of_it_is_missing(machine: Callable[[str], None], name: str) -> None:
    report = _report(machine, name)
    assert (report.problem, report.source) == ("", "NVML")
    assert [gpu.index for gpu in report.gpus] == list(range(MACHINES[name].count("card ")))
    assert report.driver and report.cuda is not None


def test_a_healthy_card_is_read_in_full(machine: Callable[[str], None]) -> None:
    report = _report(machine, "eight H100")
    first = report.gpus[0]
    assert (report.driver, report.cuda) == ("580.95.05", (13, 0))
    assert (first.name, first.memory_total_mib, first.memory_used_mib) == ("NVIDIA H100 80GB HBM3", 81559, 4)
    assert (first.compute_capability, first.num_links, first.power_limit_w) == ((9, 0), 18, 700.0)
    assert (first.ecc_volatile, first.mig, first.temperature_c, first.bus) == (0, False, 34, "00000000:01:00.0")
    assert all(is_healthy(gpu) for gpu in report.gpus)


@pytest.mark.parametrize(
    ("name", "index", "said"),
    [
        ("eight H100, card 3 lost", 3, "GPU 3: does not work, the driver says: GPU is lost"),
        (
            "eight H100, card 3 answers with an unknown error",
            3,
            "GPU 3 (NVIDIA H100 80GB HBM3): does not work, the driver says: Unknown Error",
        ),
        (
            "eight H100, card 5 wants a reset",
            5,
            "GPU 5 (NVIDIA H100 80GB HBM3): does not work, the driver says: GPU requires restart",
        ),
    ],
)
def test_a_sick_card_is_named_and_the_other_seven_are_healthy(
    machine: Callable[[str], None], name: str, index: int, said: str
) -> None:
    gpus = _report(machine, name).gpus
    trouble = faulty(gpus[index])
    assert trouble is not None
    assert trouble[0] == said
    assert "The other cards work without it." in trouble[1]
    assert [gpu.index for gpu in gpus if is_healthy(gpu)] == [i for i in range(8) if i != index]


def test_a_card_with_a_corrupt_inforom_still_works(machine: Callable[[str], None]) -> None:
    report = _report(machine, "eight A100, one with a corrupt infoROM")
    assert all(is_healthy(gpu) for gpu in report.gpus)
    trouble = degraded(report.gpus[6])
    assert trouble is not None and "infoROM is corrupt; it computes well" in trouble[0]
    assert report.cuda == (12, 4)


def test_boards_of_one_chip_are_told_apart_by_their_links(machine: Callable[[str], None]) -> None:
    assert {gpu.num_links for gpu in _report(machine, "eight H100").gpus} == {18}
    assert {gpu.num_links for gpu in _report(machine, "eight H100 PCIe").gpus} == {0}


def test_memory_that_the_driver_does_not_report_is_not_large_enough(machine: Callable[[str], None]) -> None:
    (gpu,) = _report(machine, "one GB10").gpus
    assert gpu.memory_total_mib is None
    assert not is_large_enough(gpu, 24)
    assert gpu.ecc_volatile is None and gpu.health.unreadable == ()


def test_a_card_without_bf16_is_refused_with_the_reason(machine: Callable[[str], None]) -> None:
    trouble = faulty(_report(machine, "two V100").gpus[0])
    assert trouble is not None
    assert "cannot compute in bf16 (compute capability 7.0, wanted 8.0)" in trouble[0]
    assert "fp16 is no way out" in trouble[1]


def test_heat_and_a_figure_that_the_driver_cannot_read_make_a_card_second_choice(
    machine: Callable[[str], None],
) -> None:
    (hot,) = _report(machine, "one RTX 4090 whose fan failed").gpus
    assert hot.health.throttled == ("too hot (the card slows itself down)",)
    assert not is_healthy(hot)
    (odd,) = _report(machine, MACHINES["one RTX 4090 with a desktop"].replace("heat=34", "heat=!999")).gpus
    assert odd.health.unreadable == ("temperature",)
    assert not is_healthy(odd)
    trouble = degraded(odd)
    assert trouble is not None and "fails to read its temperature" in trouble[0]


def test_an_old_driver_names_what_slows_a_card_by_its_old_name(machine: Callable[[str], None]) -> None:
    text = MACHINES["one RTX 4090 with a desktop"].replace("clocks=1", "old_clocks=0x20")
    (gpu,) = _report(machine, text).gpus
    assert gpu.health.throttled == ("too hot (the driver slows it down)",)


def test_rows_to_be_replaced_a_prohibited_mode_and_a_slice_are_seen(machine: Callable[[str], None]) -> None:
    healthy = MACHINES["one RTX 4090 with a desktop"]
    (waiting,) = _report(machine, healthy.replace("use=0", "use=0 remapped=1/0")).gpus
    assert waiting.health.remap_pending and faulty(waiting) is not None
    (closed,) = _report(machine, healthy.replace("mode=0", "mode=2")).gpus
    trouble = faulty(closed)
    assert trouble is not None and "-c DEFAULT" in trouble[1]
    (single,) = _report(machine, healthy.replace("mode=0", "mode=3")).gpus
    assert single.is_exclusive and not single.is_prohibited and faulty(single) is None
    (cut,) = _report(machine, "one H100 cut into slices").gpus
    assert cut.mig
    assert [(process.pid, process.name, process.memory_mib) for process in cut.processes] == [(4242, "python", None)]


@pytest.mark.parametrize(
    ("text", "problem", "advice"),
    [
        ("init 9\n", "Driver Not Loaded", "modprobe"),
        ("init 18\n", "version mismatch", "reboot"),
        ("driver 580.95.05\n", "the driver reports no devices", "lspci"),
    ],
)
def test_a_driver_that_does_not_answer_is_one_sentence_with_advice(
    machine: Callable[[str], None], text: str, problem: str, advice: str
) -> None:
    report = _report(machine, text)
    assert problem in report.problem
    assert advice in report.advice
    assert report.gpus == ()


def test_a_driver_that_hangs_is_left_behind_in_time(machine: Callable[[str], None]) -> None:
    machine("hang\n")
    started = time.monotonic()
    report = read_gpus(timeout_s=1, kernel_log=NOWHERE)
    assert time.monotonic() - started < 10
    assert report.problem == "The NVIDIA driver did not answer within 1 s and was killed"
    assert "keep it loaded" in report.advice


def test_where_nvml_itself_breaks_nvidia_smi_is_asked(
    machine: Callable[[str], None], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("crash\n")
    monkeypatch.setenv("PATH", f"{project / 'tests' / 'fakes'}:/usr/bin:/bin")
    report = read_gpus(timeout_s=20, kernel_log=NOWHERE)
    assert (report.source, len(report.gpus)) == ("nvidia-smi", 2)


def test_samples_leave_a_sick_card_out_and_have_figures_of_the_others(machine: Callable[[str], None]) -> None:
    machine(MACHINES["eight H100, card 3 lost"])
    states = read_states(timeout_s=20)
    assert [state.index for state in states] == [0, 1, 2, 4, 5, 6, 7]
    first = states[0]
    assert (first.power_w, first.temperature_c, first.memory_total_mib, first.utilization_percent) == (70, 34, 81559, 0)


def test_xid_errors_of_the_kernels_log_are_the_cards_own(machine: Callable[[str], None], tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.\n", encoding="utf-8")
    machine(MACHINES["eight H100"])
    found = read_gpus(timeout_s=20, kernel_log=log).gpus
    assert [gpu.index for gpu in found if gpu.health.xids] == [2]
