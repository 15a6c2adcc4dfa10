"""A stage that does not fit is tried again in another shape: the same key, recorded, bounded, and only where wanted.

Real runs, processes and folders; the program is a script that looks at its spec and its variables instead of training.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.parts.ladder import LadderSettings
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.hardware import GpuProfile
from containers.contracts.names import SPEC_FILE, StageName
from containers.contracts.outcome import FailureKind
from containers.contracts.spec import StageSpec
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.process import ProcessRuntime
from tasks.mlflow_sync.tracking import Tracking
from tasks.pipeline.failure import StageFailedError
from tasks.pipeline.run_stage import run_stage
from tasks.run.runtime import CodeIdentity
from tasks.run.state import PipelineRun
from tests.unit.factories.run_config import run_config

pytestmark = pytest.mark.waits

STAGE = StageName.TRAIN_REWARD_MODEL
CONFIG = TrainRewardModelConfig(gradient_checkpointing=False, global_batch_size=32)
FOUR_GPUS = GpuProfile(name="4x48gb", num_gpus=4, num_processes=4, max_per_device_batch_size=4)
SIZE = 32

# A machine that is too small in one way. What is said on the way out was said by torch and NCCL.
PROGRAM = """
import json, os, sys
from pathlib import Path
from containers.contracts.manifest import Manifest
from containers.contracts.outcome import StageFailure, StageResult
from containers.contracts.spec import StageSpec
from containers.contracts.digests import file_entries, write_atomically
spec = StageSpec.model_validate_json(Path({spec!r}).read_bytes())
def out_of_memory():
    values = spec.batch.per_device_batch_size * (1 if spec.config.gradient_checkpointing else 2)
    return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." if values > {room} else ""
def no_shared_memory():
    free = os.environ.get("NCCL_SHM_DISABLE") == "1"
    return "" if free else "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Xn1 (size 9637888)"
def ranks_wait():
    return "Watchdog caught collective operation timeout: WorkNCCL" if spec.batch.num_processes > {room} else ""
said = {what}()
with open("tries", "a") as stream:
    stream.write(os.environ["NCCL_DEBUG"] + " ")
if said:
    print(said, flush=True)
    os._exit(1)
output = Path("output")
output.mkdir(exist_ok=True)
(output / "made.txt").write_text("content")
manifest = Manifest(
    stage=spec.stage, key=spec.key, files=file_entries(output), ladder=spec.ladder, created_at="2026-01-01T00:00:00Z"
)
write_atomically(output / "MANIFEST.json", manifest.model_dump_json())
write_atomically(Path("outcome.json"), StageResult(stage=spec.stage, key=spec.key, duration_s=1).model_dump_json())
"""


class TooSmall(ProcessRuntime):
    """The real process runtime with the program above."""

    def __init__(self, what: str, room: int = 0) -> None:
        super().__init__()
        self._what, self._room = what, room

    def run(self, launch: LaunchRequest) -> StageExit:
        program = PROGRAM.replace("{spec!r}", repr(str((launch.spec_folder / SPEC_FILE).resolve())))
        program = program.replace("{room}", str(self._room)).replace("{what}", self._what)
        self._command = (sys.executable, "-c", program)
        return super().run(launch)


MakeRun = Callable[..., PipelineRun]


@pytest.fixture(autouse=True)
def four_cards(tmp_path: Path, smi: pytest.MonkeyPatch) -> None:
    """A machine with four free GPUs of 48 GB, and no other run."""
    smi.setenv("RLHF_GPU_LEASES", str(tmp_path / "leases"))
    smi.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    smi.setenv("FAKE_SMI", "fleet")
    smi.setenv("FAKE_SMI_FLEET", "49140 49140 49140 49140")


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(runtime: TooSmall, *, name: str = "one", **settings: Any) -> PipelineRun:
        return PipelineRun(
            run_config(
                name,
                output_dir=tmp_path / name,
                store_dir=tmp_path / "store",
                profile=FOUR_GPUS,
                runtime={"retry_wait_s": 0.01, **settings},
            ),
            runtime=runtime,
            image=None,
            code=CodeIdentity(runtime="process", reason="", image_digest="", stages_digest="sha256:1"),
            # Nobody listens there: what would be sent waits on disk.
            tracking=Tracking("http://127.0.0.1:9", output_dir=tmp_path / name),
        )

    return make


def train(run: PipelineRun) -> None:
    run_stage(run, CONFIG, ())


def specs(run: PipelineRun) -> list[StageSpec]:
    """What each attempt was told, in order; all of one key."""
    (folder,) = (run.store_dir / "attempts" / STAGE).iterdir()
    paths = sorted(folder.glob(f"attempt-*/{SPEC_FILE}"), key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return [StageSpec.model_validate_json(path.read_bytes()) for path in paths]


@pytest.mark.waits
def test_a_full_gpu_gets_smaller_batches_and_then_gradient_checkpointing(make_run: MakeRun) -> None:
    run = make_run(TooSmall("out_of_memory", room=1))
    train(run)
    found = specs(run)
    assert [spec.batch.per_device_batch_size for spec in found] == [4, 2, 1, 1]
    assert [spec.batch.gradient_accumulation_steps for spec in found] == [2, 4, 8, 8]
    assert [spec.profile.max_per_device_batch_size for spec in found] == [4, 2, 1, 1]
    assert [spec.config.gradient_checkpointing for spec in found] == [False, False, False, True]  # type: ignore[union-attr]
    (record,) = run.records
    assert (record.status, record.attempts) == ("ran", 4)
    assert record.message == (
        "again after out_of_gpu_memory; as planned but for: per-device batch 4 → 2, accumulation 2 → 4; "
        "per-device batch 2 → 1, accumulation 4 → 8; gradient checkpointing on, about a third more time"
    )


def test_what_nccl_may_use_changes_where_shared_memory_is_full(make_run: MakeRun) -> None:
    run = make_run(TooSmall("no_shared_memory"))
    train(run)
    assert [spec.profile.nccl.shm_disable for spec in specs(run)] == [False, True]
    assert run.records[0].status == "ran"


def test_ranks_that_waited_in_vain_are_tried_with_diagnostics_and_then_fewer(make_run: MakeRun) -> None:
    run = make_run(TooSmall("ranks_wait", room=2))
    train(run)
    found = specs(run)
    assert [(spec.profile.num_gpus, spec.batch.num_processes) for spec in found] == [(4, 4), (4, 4), (2, 2)]
    assert [spec.required.num_gpus for spec in found] == [4, 4, 2]
    assert (run.work_folder(STAGE, found[0].key) / "tries").read_text().split() == ["WARN", "INFO", "INFO"]


def test_the_artifact_is_that_of_the_planned_work_and_says_how_it_was_made(make_run: MakeRun) -> None:
    train(make_run(TooSmall("out_of_memory", room=4)))
    second = make_run(TooSmall("out_of_memory", room=4), name="two")
    train(second)
    (record,) = second.records
    assert record.status == "reused"
    assert record.message.endswith("as planned but for: per-device batch 4 → 2, accumulation 2 → 4")


@pytest.mark.waits
def test_a_new_run_begins_in_the_shape_of_the_last_attempt(make_run: MakeRun) -> None:
    first = make_run(TooSmall("out_of_memory", room=2), ladder=LadderSettings(max_fallbacks=1))
    with pytest.raises(StageFailedError, match="max_fallbacks is 1"):
        train(first)
    second = make_run(TooSmall("out_of_memory", room=2), name="two")
    train(second)
    assert [spec.batch.per_device_batch_size for spec in specs(second)] == [4, 2, 2, 1]


@pytest.mark.waits
def test_a_ladder_that_ends_says_what_was_tried_and_what_was_not(make_run: MakeRun) -> None:
    run = make_run(TooSmall("out_of_memory", room=0))
    with pytest.raises(StageFailedError) as failed:
        train(run)
    text = str(failed.value)
    assert failed.value.failure.kind is FailureKind.OUT_OF_GPU_MEMORY
    assert "It was tried 4 times in this run, at last with per-device batch 4 → 2" in text
    assert "Not tried in another shape: the per-device batch is 1 already; gradient checkpointing is on already" in text
    assert run.records[0].status == "failed"


def test_switched_off_the_first_failure_is_the_last(make_run: MakeRun) -> None:
    run = make_run(TooSmall("out_of_memory", room=1), ladder=LadderSettings(enabled=False))
    with pytest.raises(StageFailedError):
        train(run)
    assert len(specs(run)) == 1


def test_switched_off_ranks_that_waited_in_vain_are_tried_again_unchanged(make_run: MakeRun) -> None:
    run = make_run(TooSmall("ranks_wait", room=2), ladder=LadderSettings(enabled=False), retries=1)
    with pytest.raises(StageFailedError, match="tried 2 times"):
        train(run)
    assert [spec.ladder for spec in specs(run)] == [(), ()]


def test_a_cancelled_run_climbs_no_further(make_run: MakeRun) -> None:
    run = make_run(TooSmall("out_of_memory", room=1))
    run.should_stop = lambda: (run.store_dir / "attempts").exists()
    with pytest.raises(StageFailedError):
        train(run)
    assert len(specs(run)) == 1


def test_each_changed_attempt_says_so_in_its_mlflow_run(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(TooSmall("out_of_memory", room=4))
    train(run)
    waiting = "\n".join(path.read_text(errors="replace") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert "rlhf.ladder" in waiting
    assert "as planned but for: per-device batch 4" in waiting
