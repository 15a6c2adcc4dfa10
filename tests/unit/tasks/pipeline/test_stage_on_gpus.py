"""From the lease to the program: it sees its own card and no other, and what the card does stands beside its curves."""

import json
import sys
import threading
from pathlib import Path

import pytest

from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.hardware import GpuProfile
from containers.contracts.names import SPEC_FILE, StageName
from containers.contracts.outcome import FailureKind
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.process import ProcessRuntime
from flows.servers.process import ServerError
from flows.servers.start import BackgroundStart
from tasks.display import Display, install_display
from tasks.mlflow_sync.start import MlflowStart, install_mlflow_start
from tasks.mlflow_sync.tracking import Tracking
from tasks.pipeline import gpu_turn as module
from tasks.pipeline.failure import StageFailedError
from tasks.pipeline.run_stage import run_stage
from tasks.run.runtime import CodeIdentity
from tasks.run.state import PipelineRun
from tests.unit.factories.run_config import run_config

pytestmark = pytest.mark.waits

STAGE = StageName.EVALUATE_REWARD_MODEL
A, B = "GPU-5f3c1e0a-0000-4000-8000-00000000000a", "GPU-5f3c1e0a-0000-4000-8000-00000000000b"
PROFILE = GpuProfile(name="1x48gb", num_gpus=1, gpu_memory_gib=48, shm_size_gib=0.01)

# A stage program without torch: leaves the card that it sees, and stays until the test lets it go.
PROGRAM = """
import os, sys, time
from pathlib import Path
from containers.contracts.manifest import Manifest
from containers.contracts.outcome import StageResult
from containers.contracts.digests import file_entries, write_atomically
stage, key, go_on = sys.argv[1:]
output = Path("output")
output.mkdir()
(output / "card.txt").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
while not Path(go_on).exists():
    time.sleep(0.05)
manifest = Manifest(stage=stage, key=key, files=file_entries(output), created_at="2026-01-01T00:00:00Z")
write_atomically(output / "MANIFEST.json", manifest.model_dump_json())
write_atomically(Path("outcome.json"), StageResult(stage=stage, key=key, duration_s=1).model_dump_json())
"""


class ScriptRuntime(ProcessRuntime):
    """The real process runtime with a program of the test's."""

    def __init__(self, go_on: Path) -> None:
        super().__init__()
        self._go_on = go_on
        self.began = threading.Event()

    def run(self, launch: LaunchRequest) -> StageExit:
        spec = launch.spec
        self._command = (sys.executable, "-c", PROGRAM, spec.stage.value, spec.key, str(self._go_on))
        self.began.set()
        return super().run(launch)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, smi: pytest.MonkeyPatch) -> Path:
    smi.setenv("RLHF_GPU_LEASES", str(tmp_path / "leases"))
    smi.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    mode = tmp_path / "mode"
    mode.write_text("ok")
    smi.setenv("FAKE_SMI_FILE", str(mode))
    return mode


def _run(tmp_path: Path, name: str, *, go_on: Path, uri: str = "http://127.0.0.1:9") -> PipelineRun:
    return PipelineRun(
        run_config(name, output_dir=tmp_path / name, store_dir=tmp_path / name / "store", profile=PROFILE),
        runtime=ScriptRuntime(go_on),
        image=None,
        code=CodeIdentity(runtime="process", reason="", image_digest="", stages_digest="sha256:1"),
        tracking=Tracking(uri, output_dir=tmp_path / name),
    )


def test_two_runs_on_one_machine_have_a_card_each_and_their_programs_see_no_other(tmp_path: Path) -> None:
    runs = [_run(tmp_path, name, go_on=tmp_path / "go on") for name in ("one", "two")]
    made: dict[str, Path] = {}

    def work(run: PipelineRun) -> None:
        made[run.config.run.name] = Path(run_stage(run, EvaluateRewardModelConfig(), ()).path)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for run in runs:
        assert isinstance(run.runtime, ScriptRuntime)
        assert run.runtime.began.wait(timeout=60), "neither waits for the other: there are two cards"
    (tmp_path / "go on").touch()
    for thread in threads:
        thread.join(timeout=60)
    assert {(path / "card.txt").read_text() for path in made.values()} == {A, B}
    for run in runs:
        spec = json.loads((run.attempt_folder(STAGE, run.records[0].key, attempt=1) / SPEC_FILE).read_text())
        assert spec["required"]["gpu_uuids"] == [(made[run.config.run.name] / "card.txt").read_text()]


def test_a_card_that_is_gone_when_its_stage_starts_fails_the_stage_with_what_is_there(
    tmp_path: Path, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    run = _run(tmp_path, "one", go_on=tmp_path)
    machine.write_text("mismatch")
    with pytest.raises(StageFailedError, match="version mismatch") as failed:
        run_stage(run, EvaluateRewardModelConfig(), ())
    assert failed.value.failure.kind is FailureKind.MISSING_PREREQUISITE
    assert run.records[0].status == "failed"
    assert "The GPUs were there when the run was checked" in run.records[0].message


def test_a_stage_takes_its_card_without_an_mlflow_that_does_not_start_and_says_so_before(tmp_path: Path) -> None:
    class Said(Display):
        def say(self, text: str, *, is_logged: bool = False) -> None:
            lines.append(text)

    def fails(given_up: threading.Event) -> bool:
        raise ServerError("The MLflow server ended with exit code 3.")

    lines: list[str] = []
    install_display(Said())
    install_mlflow_start(BackgroundStart(fails, say=lambda text: None))
    try:
        run = _run(tmp_path, "one", go_on=tmp_path)
        run.tracking.start_pipeline("one")
        run_stage(run, EvaluateRewardModelConfig(), ())
        run.tracking.finish_pipeline("FINISHED")
    finally:
        install_mlflow_start(MlflowStart())
        install_display(Display())
    assert run.records[0].status == "ran"
    (told,) = [line for line in lines if "WITHOUT MLFLOW" in line]
    assert "takes 1 GPU(s) WITHOUT MLFLOW, which did not start" in told
    assert run.tracking.pending > 0, "the next run tells it"


@pytest.mark.slow
def test_what_the_card_does_is_in_mlflow_beside_the_curves_of_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)  # MLflow puts files into the present folder
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = _run(tmp_path, "one", go_on=tmp_path, uri=uri)
    run.tracking.start_pipeline("one")
    run_stage(run, EvaluateRewardModelConfig(), ())
    run.tracking.finish_pipeline("FINISHED")
    metrics = MlflowClient(uri).get_run(run.records[0].mlflow_run_id).data.metrics
    assert metrics["system/gpu_0_utilization_percentage"] == 97
    assert metrics["system/gpu_0_power_usage_watts"] == pytest.approx(151.27)
