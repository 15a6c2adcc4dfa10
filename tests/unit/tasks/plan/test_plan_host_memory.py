"""A plan says what memory this machine has and what a stage may take of it, and warns where that is too little."""

from pathlib import Path

import pytest

from containers.contracts.hardware import GIB
from containers.host.control_groups import Memory
from containers.launch import host_limits
from tasks.config.errors import InvalidConfigError
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.plan.run_plan import plan_run
from tasks.plan.text import render_plan
from tests.unit.factories.plan_runs import pair, run_on
from tests.unit.factories.run_files import write_run

DERIVED = (
    "host_memory_gib of profile `small` is not set; derived 13.2 GiB from the 16.0 GiB of this machine less 2.80 GiB "
    "for servers, orchestrator and system"
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_limits, "read_memory", lambda: Memory(16 * GIB, 12 * GIB))
    monkeypatch.setattr(host_limits, "read_machine_memory", lambda: Memory(64 * GIB, 60 * GIB))


def small_run(folder: Path, kind: str, **profile: object) -> LoadedConfig:
    run_on(folder, [pair(10, 2, 3)] * 150)
    path = folder / "run.yaml"
    overrides = [f"runtime.kind={kind}", *(f"gpu_profile.{name}={value}" for name, value in profile.items())]
    return load_run_config(path, overrides=overrides)


def memory_line(loaded: LoadedConfig) -> str:
    (line,) = [line for line in render_plan(plan_run(loaded)).splitlines() if line.startswith("  memory ")]
    return " ".join(line.split())


@pytest.mark.parametrize(
    ("kind", "profile", "line"),
    [
        ("docker", {}, f"memory 12.0 GiB free of 16.0 GiB; {DERIVED}"),
        ("auto", {}, f"memory 12.0 GiB free of 16.0 GiB; in Docker, {DERIVED}"),
        (
            "process",
            {},
            "memory 12.0 GiB free of 16.0 GiB; host_memory_gib of profile `small` is not set, and the process runtime "
            "enforces no limit",
        ),
        # Who names a limit for containers says that the daemon has so much outside of our control group.
        (
            "docker",
            {"host_memory_gib": 20},
            "memory 60.0 GiB free of 64.0 GiB; host_memory_gib of profile `small`: 20 GiB",
        ),
        (
            "docker",
            {"host_memory_gib": "unlimited"},
            "memory 60.0 GiB free of 64.0 GiB; host_memory_gib of profile `small`: unlimited, so the whole machine",
        ),
    ],
)
def test_memory_and_the_limit_of_a_stage_stand_in_the_plan(
    tmp_path: Path, machine: None, kind: str, profile: dict[str, object], line: str
) -> None:
    loaded = small_run(tmp_path, kind, **profile)
    assert memory_line(loaded) == line
    assert plan_run(loaded).warnings == ()


def test_a_stage_that_needs_more_than_its_limit_is_a_warning_with_both_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_limits, "read_memory", lambda: Memory(GIB // 16, GIB // 16))
    (warning,) = plan_run(small_run(tmp_path, "docker")).warnings
    assert warning.startswith("memory: about ")
    assert "here it can have 32.0 MiB of 64.0 MiB: host_memory_gib of profile `small` is not set; derived" in warning


@pytest.mark.parametrize("value", ["none", "0", "-1", "70000", ".inf", "[]", "1" + 400 * "0"])
def test_a_limit_that_is_neither_a_size_nor_unlimited_is_one_mistake(tmp_path: Path, value: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        load_run_config(write_run(tmp_path), overrides=[f"gpu_profile.host_memory_gib={value}"])
    (mistake,) = refused.value.mistakes
    assert mistake.key == "gpu_profile.host_memory_gib"
    assert "`unlimited` for no limit" in mistake.text
