"""What a plan says beforehand about a stage that does not fit: which changes would be tried, in order."""

from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.outcome import FailureKind
from containers.contracts.stage_configs import StageConfig
from containers.launch.ladder import Host, Shape, all_steps, next_step
from flows.run_config import RuntimeSection


def ladder_lines(
    config: StageConfig, profile: GpuProfile, batch: BatchPlan, *, runtime: RuntimeSection
) -> tuple[tuple[str, str], ...]:
    """A name and a line for each failure that this stage can have on this profile; empty for one rank on a CPU."""
    failures = {
        "if a GPU is full": (FailureKind.OUT_OF_GPU_MEMORY, profile.num_gpus > 0),
        "if /dev/shm is full": (FailureKind.SHM_EXHAUSTED, profile.num_gpus > 0),
        "if ranks wait in vain": (FailureKind.NCCL_TIMEOUT, profile.num_processes > 1),
    }
    planned, host = Shape(config, profile, batch), Host(makes_shm=runtime.kind != "process")
    return tuple(
        (name, _line(kind, planned, host=host, runtime=runtime))
        for name, (kind, possible) in failures.items()
        if possible
    )


def _line(kind: FailureKind, planned: Shape, *, host: Host, runtime: RuntimeSection) -> str:
    settings = runtime.ladder
    if not settings.enabled:
        again = f"tried again unchanged, {runtime.retries} times" if kind.retry_can_help else "the stage fails"
        return f"{again} (runtime.ladder.enabled is false)"
    rungs = all_steps(kind, planned, host=host, settings=settings)
    if rungs:
        return "; then ".join(rung.change for rung in rungs)
    step = next_step(kind, planned, (), host=host, settings=settings)
    return f"the stage fails: {'; '.join(step.not_tried if step else ())}"
