"""A person wants a part of the pipeline only, or a stage once more: `--until`, `--again-from`."""

import os
import subprocess
from pathlib import Path

import pytest
from short_runs import ENVIRONMENT, command_line, rlhf

from containers.contracts.names import StageName
from containers.contracts.records import PipelineRecord
from tasks.pipeline.standing_report import last_record

pytestmark = [pytest.mark.slow, pytest.mark.stages]

PART = ("run.name=part", "run.until=build_base_model")


def test_a_run_ends_where_it_was_asked_to_and_a_stage_is_made_again_only_when_asked(served: Path) -> None:
    first = rlhf(served, "run", *PART)
    assert first.returncode == 0, first.stdout + first.stderr
    assert _statuses(served) == {
        "check_system": "ran",
        "filter_dataset": "ran",
        "build_base_model": "ran",
        "write_report": "ran",
    }
    made = _record_of(served, StageName.BUILD_BASE_MODEL)

    again = _run(served, "--again-from", "build_base_model", changes=PART)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "run.again_from is build_base_model" in again.stdout
    assert _statuses(served)["filter_dataset"] == "reused"
    assert _statuses(served)["build_base_model"] == "ran"
    remade = _record_of(served, StageName.BUILD_BASE_MODEL)
    assert (remade.key, remade.digest) == (made.key, made.digest)
    assert [path.name for path in Path(remade.path).parent.glob("*.replaced-*")] == [f"{made.key}.replaced-1"]

    third = rlhf(served, "run", *PART)
    assert third.returncode == 0, third.stdout + third.stderr
    assert _statuses(served)["build_base_model"] == "reused"


def test_stages_that_a_run_does_not_have_are_refused_with_those_that_it_has(folder: Path) -> None:
    ended = _run(folder, "--until", "train_grpo")
    assert ended.returncode == 2
    assert "run.until" in ended.stderr and "train_policy" in ended.stderr
    ended = _run(folder, "--until", "filter_dataset", "--again-from", "train_policy")
    assert ended.returncode == 2
    assert "`train_policy` comes after run.until, which is `filter_dataset`" in ended.stderr


def _run(folder: Path, *options: str, changes: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command_line("run", *changes), *options],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _record(folder: Path) -> PipelineRecord:
    record = last_record(folder / "outputs" / "part")
    assert record is not None
    return record


def _statuses(folder: Path) -> dict[str, str]:
    return {stage.stage.value: stage.status for stage in _record(folder).stages}


def _record_of(folder: Path, stage: StageName):  # type: ignore[no-untyped-def]
    return next(item for item in _record(folder).stages if item.stage is stage)
