"""One stage through the container boundary, with real processes: what is reused, retried and left by a failure."""

import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.names import SPEC_FILE, VERDICTS_FILE, StageName
from containers.contracts.outcome import FailureKind
from containers.contracts.spec import StageSpec
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.process import ProcessRuntime
from tasks.judges.people import PeopleWaitedForError
from tasks.mlflow_sync.tracking import Tracking
from tasks.pipeline.failure import FAILURE_FILE, StageFailedError
from tasks.pipeline.left_pairs import left_pairs
from tasks.pipeline.run_stage import run_stage
from tasks.run.runtime import CodeIdentity
from tasks.run.state import PipelineRun
from tests.unit.factories.run_config import run_config

pytestmark = pytest.mark.waits

STAGE = StageName.FILTER_DATASET

# A stage program without torch: counts its starts, then does what `PLAN` says of that start.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from containers.contracts.manifest import Manifest
from containers.contracts.outcome import StageFailure, StageResult
from containers.contracts.digests import file_entries, write_atomically
work = Path.cwd()
starts = work / "starts"
number = int(starts.read_text()) if starts.exists() else 0
starts.write_text(str(number + 1))
plan = {plan!r}
what = plan[min(number, len(plan) - 1)]
if what.startswith("checkpoint"):
    (work / "checkpoints" / what.replace(" ", "-")).mkdir(parents=True, exist_ok=True)
    what = "killed"
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "slow":
    time.sleep(2)
stage, key = os.environ["TEST_STAGE"], os.environ["TEST_KEY"]
if what == "diverged":
    failure = StageFailure(stage=stage, key=key, kind="diverged", message="the loss is NaN at step 3")
    write_atomically(work / "outcome.json", failure.model_dump_json())
    sys.exit(1)
if what.startswith("awaits"):
    if what == "awaits a judge":
        folder = work / "asked" / ("a" * 32)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "asked.json").write_text('{"judge": "far", "num_pairs": 8}')
    failure = StageFailure(stage=stage, key=key, kind="awaits_judge", message="8 pairs wait for judge far")
    write_atomically(work / "outcome.json", failure.model_dump_json())
    sys.exit(1)
output = work / "output"
output.mkdir(exist_ok=True)
(output / "made.txt").write_text("content")
manifest = Manifest(stage=stage, key=key, files=file_entries(output), created_at="2026-01-01T00:00:00Z")
write_atomically(output / "MANIFEST.json", manifest.model_dump_json())
write_atomically(work / "outcome.json", StageResult(stage=stage, key=key, duration_s=1).model_dump_json())
"""


class ScriptRuntime(ProcessRuntime):
    """The real process runtime with a program of the test's."""

    def __init__(self, *plan: str) -> None:
        super().__init__()
        self._plan = plan

    def run(self, launch: LaunchRequest) -> StageExit:
        program = PROGRAM.replace("{plan!r}", repr(list(self._plan)))
        who = f"TEST_STAGE={launch.spec.stage.value!r}, TEST_KEY={launch.spec.key!r}"
        program = f"import os; os.environ.update({who})\n{program}"
        self._command = (sys.executable, "-c", program)
        return super().run(launch)


MakeRun = Callable[..., PipelineRun]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(*plan: str, name: str = "one", **settings: object) -> PipelineRun:
        runtime = {"retry_wait_s": 0.01, "retries": 2, **settings}
        return PipelineRun(
            run_config(name, output_dir=tmp_path / name, store_dir=tmp_path / "store", runtime=runtime),
            runtime=ScriptRuntime(*plan),
            image=None,
            code=CodeIdentity(runtime="process", reason="", image_digest="", stages_digest="sha256:1"),
            # Nobody listens there: what would be sent waits on disk.
            tracking=Tracking("http://127.0.0.1:9", output_dir=tmp_path / name),
        )

    return make


def starts(run: PipelineRun) -> int:
    """How often the program was started for the only key of the stage."""
    return sum(int(path.read_text()) for path in (run.store_dir / "work").glob("*/*/starts"))


def test_the_same_work_is_done_once_and_linked_into_every_run_that_wants_it(make_run: MakeRun) -> None:
    first, second = make_run("good"), make_run("good", name="two")
    made = run_stage(first, FilterDatasetConfig(), ())
    assert run_stage(second, FilterDatasetConfig(), ()) == made
    assert starts(first) == 1
    assert [record.status for run in (first, second) for record in run.records] == ["ran", "reused"]
    assert second.records[0].message == f"made by run one ({first.run_id}) on 1 January 2026, 00:00 UTC"
    for run in (first, second):
        assert (run.output_dir / "artifacts" / STAGE / "made.txt").read_text() == "content"


def test_two_runs_at_once_start_the_program_once_and_both_have_its_artifact(make_run: MakeRun) -> None:
    runs = [make_run("slow", name=name) for name in ("one", "two", "three")]
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda run=run: found.append(run_stage(run, FilterDatasetConfig(), ()).path))
        for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert starts(runs[0]) == 1


def test_a_killed_stage_is_tried_again_and_each_attempt_leaves_its_own_record(make_run: MakeRun) -> None:
    run = make_run("killed", "good")
    run_stage(run, FilterDatasetConfig(), ())
    assert run.records[0].status == "ran"
    assert run.records[0].attempts == 2
    key = run.records[0].key
    evidence = json.loads((run.attempt_folder(STAGE, key, attempt=1) / FAILURE_FILE).read_text())
    assert evidence["failure"]["kind"] == FailureKind.CONTAINER_LOST
    assert "MiB" in evidence["machine"]["disk free"]
    assert not (run.attempt_folder(STAGE, key, attempt=2) / FAILURE_FILE).exists()


def test_a_stage_that_dies_without_progress_is_given_up_after_the_configured_attempts(make_run: MakeRun) -> None:
    run = make_run("killed")
    with pytest.raises(StageFailedError, match="tried 3 times") as failed:
        run_stage(run, FilterDatasetConfig(), ())
    assert failed.value.failure.kind is FailureKind.CONTAINER_LOST
    assert starts(run) == 3
    assert run.records[0].status == "failed"
    assert not (run.store_dir / "artifacts").exists()


def test_progress_between_deaths_gives_new_patience(make_run: MakeRun) -> None:
    run = make_run("killed", "checkpoint 10", "killed", "checkpoint 20", "killed", "good", retries=2)
    run_stage(run, FilterDatasetConfig(), ())
    assert starts(run) == 6


def test_what_cannot_pass_by_itself_is_not_tried_again(make_run: MakeRun) -> None:
    run = make_run("diverged", "good")
    with pytest.raises(StageFailedError, match="NaN at step 3"):
        run_stage(run, FilterDatasetConfig(), ())
    assert starts(run) == 1


def test_a_stage_that_waits_for_a_judge_is_no_failure_and_goes_on_once_it_has_judged(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("awaits a judge", "good")

    def judged(run: PipelineRun, config: object, work_folder: Path, *, say: object) -> None:
        for left in left_pairs(work_folder):
            (Path(left.path) / VERDICTS_FILE).write_text("")

    monkeypatch.setattr("tasks.pipeline.run_stage.judge_left_pairs", judged)
    run_stage(run, FilterDatasetConfig(), ())
    (record,) = run.records
    assert (record.status, record.attempts, record.message) == ("ran", 2, "its judge has judged")
    assert not (run.attempt_folder(STAGE, record.key, attempt=1) / FAILURE_FILE).exists()


def test_a_judge_that_cannot_be_reached_ends_the_stage_with_what_to_do(make_run: MakeRun) -> None:
    run = make_run("awaits a judge", "good")
    with pytest.raises(StageFailedError, match=r"judge far, whom the run cannot reach(.|\n)*Full log") as failed:
        run_stage(run, FilterDatasetConfig(), ())
    assert failed.value.failure.kind is FailureKind.MISSING_PREREQUISITE
    assert (starts(run), run.records[0].status) == (1, "failed")


def test_a_stage_that_waits_for_nothing_is_not_started_for_ever(make_run: MakeRun) -> None:
    run = make_run("awaits nothing")
    with pytest.raises(StageFailedError, match="awaits_judge"):
        run_stage(run, FilterDatasetConfig(), ())
    assert starts(run) == 1


def test_people_who_have_yet_to_judge_leave_a_record_that_the_stage_waits(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("awaits a judge", "good")

    def judged(run: PipelineRun, config: object, work_folder: Path, *, say: object) -> None:
        if any(left_pairs(work_folder)):
            raise PeopleWaitedForError("People have yet to judge.", [])

    monkeypatch.setattr("tasks.pipeline.run_stage.judge_left_pairs", judged)
    with pytest.raises(PeopleWaitedForError):
        run_stage(run, FilterDatasetConfig(), ())
    assert (starts(run), run.records[0].status, run.records[0].attempts) == (1, "waits", 1)


def test_a_changed_setting_is_named_as_the_reason_to_run_again(make_run: MakeRun) -> None:
    run = make_run("good")
    run_stage(run, FilterDatasetConfig(max_characters=5000), ())
    assert run.records[0].message == "this run has no result of it yet"
    run_stage(run, FilterDatasetConfig(max_characters=6000), ())
    assert run.records[0].message == "filter_dataset.max_characters changed from 5000 to 6000"


def test_a_lost_and_a_damaged_artifact_are_named_as_the_reason_to_run_again(make_run: MakeRun) -> None:
    run = make_run("good")
    made = Path(run_stage(run, FilterDatasetConfig(), ()).path)
    made.joinpath("made.txt").write_text("altered")
    run_stage(run, FilterDatasetConfig(), ())
    assert run.records[0].message == "its artifact was damaged"
    made.rename(made.with_name("away"))
    run_stage(run, FilterDatasetConfig(), ())
    assert run.records[0].message == "its artifact is gone"
    assert starts(run) == 3


def test_a_cancelled_run_is_not_tried_again(make_run: MakeRun) -> None:
    run = make_run("killed")
    run.should_stop = lambda: starts(run) > 0
    with pytest.raises(StageFailedError):
        run_stage(run, FilterDatasetConfig(), ())
    assert starts(run) == 1


def test_a_person_may_let_a_stage_start_over_and_that_changes_neither_its_key_nor_what_is_reused(
    make_run: MakeRun,
) -> None:
    allowed, plain = make_run("good", start_over_if_damaged=True), make_run("good", name="two")
    run_stage(allowed, FilterDatasetConfig(), ())
    key = allowed.records[0].key
    spec = StageSpec.model_validate_json((allowed.attempt_folder(STAGE, key, attempt=1) / SPEC_FILE).read_bytes())
    assert spec.start_over_if_damaged
    run_stage(plain, FilterDatasetConfig(), ())
    assert [record.status for record in plain.records] == ["reused"]


def test_a_full_disk_is_said_with_what_is_free_and_the_next_run_goes_on(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(launch: LaunchRequest) -> StageExit:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(launch.work_folder))

    run = make_run("good")
    with monkeypatch.context() as patch:
        patch.setattr(run.runtime, "run", full)
        with pytest.raises(StageFailedError, match=r"store has [\d,]+ MiB free, which was not enough") as failed:
            run_stage(run, FilterDatasetConfig(), ())
    assert failed.value.failure.kind is FailureKind.DISK_FULL
    assert not list(run.store_dir.glob("artifacts/*/*"))
    run_stage(make_run("good", name="two"), FilterDatasetConfig(), ())
    assert len(list(run.store_dir.glob("artifacts/*/*/MANIFEST.json"))) == 1
