"""Start the self-test's program where the stages run, and collect what its probes measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from containers.contracts.configs.selftest import MEASURED_PROBES_FILE, REQUEST_INPUT, Measured, SelftestRequest
from containers.contracts.configs.stages import StageConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.digests import file_sha256
from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.identity import SINGLE_BATCH
from containers.contracts.names import StageName
from containers.contracts.spec import StageInput, StageSpec
from containers.formatting import one_line
from containers.launch.base import LaunchError, LaunchRequest
from containers.launch.collect import read_outcome
from containers.launch.environment import folder_environment
from containers.launch.failures.classify import classify
from tasks.pipeline.gpu_turn import on_gpus
from tasks.run.runtime import CodeIdentity, required_contract, start_runtime

_PROGRAM = "containers.selftest.program"
_LOG_LINES = 3
# Of a program; of one that starts vLLM, and may write a model for it.
LIMIT_S, ENGINE_LIMIT_S = 240.0, 480.0
# Of the variables with folders of a stage: those from which no library loads what it compiled.
_WITHOUT_LIBRARIES = frozenset({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "MPLCONFIGDIR", "HF_HOME"})


@dataclass(frozen=True)
class Machine:
    """Where the self-test runs.

    Attributes:
        gpu_ids: UUIDs of the profile's GPUs, which the self-test holds; empty without GPUs.
        folder: of specs, work folders and artifacts.
        model: content of a config.json with the shape of the run's model; empty where it is not known.
        model_note: how that shape differs from the run's model, or why it is not known.
        should_stop: polled while a program runs; True stops it.
    """

    profile: GpuProfile
    code: CodeIdentity
    image: str
    gpu_ids: tuple[str, ...]
    folder: Path
    model: Mapping[str, object] = field(default_factory=dict)
    model_note: str = ""
    should_stop: Callable[[], bool] = lambda: False

    @property
    def one_card(self) -> GpuProfile:
        """The profile with one rank."""
        alone = {"num_gpus": min(1, self.profile.num_gpus), "num_processes": 1, "num_rollout_gpus": 0}
        return self.profile.model_copy(update={**alone, "tensor_parallel": 1, "distribution": "ddp"})

    @property
    def all_cards(self) -> GpuProfile:
        """The profile with one program that sees all GPUs."""
        others = max(0, self.profile.num_gpus - 1)
        return self.profile.model_copy(
            update={"num_processes": 1, "num_rollout_gpus": others, "distribution": "ddp"},
        )


@dataclass(frozen=True)
class Launch:
    """Probes that one program measures.

    Attributes:
        limit_s: of the program.
        inputs: files beside the request, by name.
    """

    probes: tuple[str, ...]
    profile: GpuProfile
    limit_s: float
    config: StageConfig = TrainRewardModelConfig()  # noqa: RUF009 - it is frozen
    batch: BatchPlan = SINGLE_BATCH
    inputs: Mapping[str, Path] = field(default_factory=dict)


def measured(machine: Machine, launch: Launch, *, on_tick: Callable[[], object] = lambda: None) -> list[Measured]:
    """Return what each probe measured, in their order; one that ended the program does not stop those behind it."""
    found: list[Measured] = []
    left = list(launch.probes)
    while left:
        folder = machine.folder / "probes" / f"{len(found)}-{left[0]}"
        try:
            now, problem = _once(machine, launch, left, folder, on_tick)
        except LaunchError as error:
            now, problem = [], str(error)
        if not any(one.error for one in now) and len(now) < len(left):
            now.append(Measured(probe=left[len(now)], error=problem or "the program ended without a result"))
        found += now
        left = left[len(now) :]
    return found


def _once(
    machine: Machine, launch: Launch, probes: Sequence[str], folder: Path, on_tick: Callable[[], object]
) -> tuple[list[Measured], str]:
    """Run the program once; return what it left, and why it ended early."""
    request, work = folder / "request.json", folder / "work"
    folder.mkdir(parents=True)
    request.write_text(
        SelftestRequest(
            probes=tuple(probes),
            model=dict(machine.model),
            model_note=machine.model_note,
            cache_variables=tuple(name for name in folder_environment("") if name not in _WITHOUT_LIBRARIES),
        ).model_dump_json(),
        encoding="utf-8",
    )
    spec = _spec(machine, launch, {REQUEST_INPUT: request, **launch.inputs}, folder)
    stage_exit = start_runtime(machine.code.runtime).run(
        LaunchRequest(
            spec=spec,
            spec_folder=folder / "spec",
            work_folder=work,
            image=machine.image,
            on_tick=on_tick,
            should_stop=machine.should_stop,
            program=_PROGRAM,
            gpu_ids=machine.gpu_ids[: launch.profile.num_gpus],
        )
    )
    lines = work / MEASURED_PROBES_FILE
    found = [Measured.model_validate_json(line) for line in lines.read_text().splitlines()] if lines.is_file() else []
    failure = classify(spec, stage_exit, read_outcome(work))
    said = [line for line in stage_exit.log_tail if line.strip()][-_LOG_LINES:]
    # The classification speaks of the stage whose configuration the spec has.
    why = "" if failure is None else failure.message.replace(f"{spec.stage}", "the program", 1)
    return found, one_line(" | ".join(filter(None, [why, *said])), 600)


def _spec(machine: Machine, launch: Launch, inputs: Mapping[str, Path], folder: Path) -> StageSpec:
    gpu_ids, code = machine.gpu_ids[: launch.profile.num_gpus], machine.code
    spec = StageSpec(
        stage=StageName(launch.config.stage),
        key="0" * 64,
        config=launch.config,
        inputs=tuple(
            StageInput(name=name, path=str(path.resolve()), digest=f"sha256:{file_sha256(path)}")
            for name, path in inputs.items()
        ),
        seed=0,
        profile=launch.profile,
        batch=launch.batch,
        required=required_contract(launch.profile, seed=0, stages_digest=code.stages_digest, runtime=code.runtime),
        runtime=code.runtime,
        image_digest=code.image_digest,
        run_id="selftest",
        timeout_s=launch.limit_s,
        work_path=str(folder / "work"),
    )
    return on_gpus(spec, gpu_ids) if gpu_ids else spec
