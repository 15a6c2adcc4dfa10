"""Launches for tests of the wall: a real spec, real folders, and callbacks that remember what they were given."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from containers.contracts.configs.write_report import WriteReportConfig
from containers.contracts.hardware import BatchPlan, GpuProfile, RequiredContract
from containers.contracts.names import StageName
from containers.contracts.outcome import StageFailure, StageResult
from containers.contracts.spec import StageInput, StageSpec
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.environment import stage_environment
from containers.launch.host_limits import memory_limit

KEY = "ab" * 32
GIB = 1024**3


def make_profile(**changes: Any) -> GpuProfile:
    values: dict[str, Any] = {
        "name": "test",
        "num_gpus": 0,
        "precision": "float32",
        "tf32": False,
        "shm_size_gib": 0.125,
        "memlock_bytes": 8 * 1024**2,
        "stack_bytes": 8 * 1024**2,
    }
    return GpuProfile(**{**values, **changes})


def make_spec(*, profile: GpuProfile | None = None, runtime: str = "docker", **changes: Any) -> StageSpec:
    profile = profile or make_profile()
    # As the profile says; what is derived from a machine is the affair of its own tests.
    limit = memory_limit(profile, machine_bytes=0, runtime="docker" if runtime == "docker" else "process")
    values: dict[str, Any] = {
        "stage": StageName.WRITE_REPORT,
        "key": KEY,
        "config": WriteReportConfig(),
        "seed": 7,
        "profile": profile,
        "batch": BatchPlan(
            global_batch_size=profile.num_processes,
            per_device_batch_size=1,
            num_processes=profile.num_processes,
            gradient_accumulation_steps=1,
        ),
        "required": RequiredContract(
            shm_size_bytes=int(profile.shm_size_gib * GIB),
            memlock_bytes=profile.memlock_bytes,
            stack_bytes=profile.stack_bytes,
            num_gpus=profile.num_gpus,
            host_memory_bytes=limit.limit_bytes,
            host_memory_reason=limit.reason,
            environment=stage_environment(profile, seed=7),
            enforced=runtime == "docker",
        ),
        "runtime": runtime,
        "run_id": "run-1",
        "work_path": "set by the runtime",
    }
    return StageSpec(**{**values, **changes})


@dataclass
class Watcher:
    """Remembers lines and ticks; `stop` cancels."""

    lines: list[str] = field(default_factory=list)
    num_ticks: int = 0
    stop: bool = False

    def on_line(self, line: str) -> None:
        self.lines.append(line)

    def should_stop(self) -> bool:
        return self.stop

    def on_tick(self) -> None:
        self.num_ticks += 1


def make_launch(folder: Path, spec: StageSpec, *, watcher: Watcher | None = None, **changes: Any) -> LaunchRequest:
    watcher = watcher or Watcher()
    values: dict[str, Any] = {
        "spec": spec,
        "spec_folder": folder / "specs" / "attempt-1",
        "work_folder": folder / "work",
        "on_line": watcher.on_line,
        "should_stop": watcher.should_stop,
        "on_tick": watcher.on_tick,
    }
    return LaunchRequest(**{**values, **changes})


def make_input(name: str, path: Path) -> StageInput:
    return StageInput(name=name, path=str(path), digest="sha256:0")


def make_exit(**changes: Any) -> StageExit:
    values: dict[str, Any] = {
        "exit_code": 0,
        "oom_killed": False,
        "timed_out": False,
        "cancelled": False,
        "duration_s": 2.0,
        "log_tail": (),
        "container_id": "c0ffee",
        "image_digest": "sha256:1",
        "lost": False,
        "state": {},
    }
    return StageExit(**{**values, **changes})


def make_result(spec: StageSpec) -> StageResult:
    return StageResult(stage=spec.stage, key=spec.key, duration_s=1)


def make_failure(spec: StageSpec, kind: str, message: str, *evidence: str) -> StageFailure:
    return StageFailure(stage=spec.stage, key=spec.key, kind=kind, message=message, evidence=evidence)
