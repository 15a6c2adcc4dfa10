"""What people do to a run, and to the clock that it looks at."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_rows import Fault
from mortal_server import Mlflow, Prefect
from prefect.client.schemas.objects import State, StateType
from reference import POLICY, REWARD, SAVES_EVERY, Reference, own_store
from tiny_project import DRIVER, TinyProject, curves, notes, recorded_step, recorded_steps, weights_digest

from containers.contracts.names import StageName

pytestmark = [pytest.mark.slow, pytest.mark.stages]

TWO_DAYS_S = 2 * 24 * 3600
START = """
import runpy, sys
sys.executable = sys.argv.pop(1)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.usefixtures("undisturbed")
def test_cancel_in_prefect(tiny: TinyProject, prefect: Prefect, mlflow: Mlflow, fault: Fault) -> None:
    fault.describe("people and clocks", "Cancel in Prefect while train_policy works", parts="rlhf run, Prefect server")
    num_steps = 60
    name, store, setting = own_store(tiny, "cancelled", POLICY)
    command = (
        f"run.name={name}",
        setting,
        f"tracking.prefect_api_url={prefect.api_url}",
        f"tracking.mlflow_uri={mlflow.uri}",
        f"train_policy.schedule.max_steps={num_steps}",
    )
    driven = tiny.rlhf(*command)
    work = tiny.wait_for_step(POLICY, 1, of=driven, store=store)
    (running,) = prefect.shown(name)
    prefect.client.set_flow_run_state(running.run.id, State(type=StateType.CANCELLING, name="Cancelling"))
    asked_at = time.monotonic()
    assert driven.wait() == 130, driven.text
    stopped_after_s = time.monotonic() - asked_at
    assert "The run was cancelled in Prefect." in driven.text
    stopped_at = recorded_step(work)
    assert 1 <= stopped_at < num_steps
    (cancelled,) = prefect.shown(name)
    assert cancelled.state == "Cancelled"
    assert cancelled.tasks[POLICY] == ["Cancelled"]
    assert StageName.EVALUATE_POLICY not in cancelled.tasks
    assert "cancelled" in (tiny.folder / "outputs" / name / "report.html").read_text(encoding="utf-8")
    assert len(list((tiny.folder / "outputs" / store / "attempts" / POLICY).glob("*/attempt-*"))) == 1

    fault.recovery_starts()
    again = tiny.rlhf(*command)
    assert again.wait() == 0, again.text
    assert [note for note in notes(work) if note.startswith("Resuming from checkpoint-")]
    steps = recorded_steps(work)
    repeated = len(steps) - len(set(steps))
    assert set(steps) == set(range(1, num_steps + 1))
    assert repeated <= SAVES_EVERY[POLICY]
    assert [shown.state for shown in prefect.shown(name)] == ["Cancelled", "Completed"]
    fault.recovered(
        seen=f"the stage saves a checkpoint and stops, the run ends as Cancelled {stopped_after_s:.0f} s later with "
        "exit code 130, is not tried again, and its report says so; the same command goes on",
        repeated=f"{repeated} steps of {num_steps}",
    )


def test_the_clock_jumps(
    tiny: TinyProject, undisturbed: Reference, mlflow: Mlflow, fault: Fault, tmp_path: Path
) -> None:
    fault.describe(
        "people and clocks",
        "The wall clock jumps two days ahead and then two days back while train_reward_model works",
        parts="orchestrator, stage process",
    )
    name, store, setting = own_store(tiny, "clock", REWARD)
    step_file, python = python_with_stepped_clock(tmp_path)
    began = time.monotonic()
    # The stage's environment is made anew, so it gets the clock with its interpreter, which is the orchestrator's.
    driven = tiny._start(
        [str(python), "-c", START, str(python), str(DRIVER), "configs/runs/tiny.yaml", REWARD.value],
        (f"run.name={name}", setting, f"tracking.mlflow_uri={mlflow.uri}", f"tracking.experiment={name}"),
        None,
    )
    work = tiny.wait_for_step(REWARD, 5, of=driven, store=store)
    step_file.write_text(str(TWO_DAYS_S))
    fault.recovery_starts()
    tiny.wait_for_step(REWARD, 15, of=driven, store=store)
    step_file.write_text(str(-TWO_DAYS_S))
    assert driven.wait() == 0, driven.text
    elapsed_s = time.monotonic() - began

    times = [json.loads(line)["time"] for line in (work / "events.jsonl").read_text().splitlines()]
    assert max(times) - min(times) > TWO_DAYS_S  # the stage did see it
    artifact = tiny.artifact(REWARD, name)
    assert weights_digest(artifact) == undisturbed.weights[REWARD]
    assert curves(artifact) == undisturbed.curves[REWARD]
    durations = dict(durations_in(work, artifact))
    assert durations
    durations |= {f"MLflow {run_name} {run_id}": value for run_name, run_id, value in mlflow.durations_s(name)}
    assert all(0 <= value <= elapsed_s for value in durations.values()), durations
    fault.recovered(
        seen=f"weights and curves equal the undisturbed run's; none of {len(durations)} recorded durations is negative "
        f"or longer than the {elapsed_s:.0f} s that it took"
    )


def python_with_stepped_clock(folder: Path) -> tuple[Path, Path]:
    """A file of seconds by which the wall clock is wrong, and an interpreter that believes it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NO C COMPILER: the clock cannot be stepped for one process, so nothing was tested (install cc).")
    library, step_file, python = folder / "stepped_clock.so", folder / "step", folder / "python"
    source = Path(__file__).with_name("stepped_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    step_file.write_text("0")
    python.write_text(
        f'#!/bin/sh\nexport LD_PRELOAD="{library}" STEPPED_CLOCK_FILE="{step_file}"\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return step_file, python


def durations_in(*folders: Path) -> Iterator[tuple[str, float]]:
    """Every duration that stands in a JSON file below the folders, with where it stands."""
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            yield from _durations(json.loads(path.read_text(encoding="utf-8")), str(path.relative_to(folder)))


def _durations(value: Any, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, (int, float)) and key in ("duration_s", "elapsed_s", "seconds"):
                yield f"{where}:{key}", float(item)
            else:
                yield from _durations(item, f"{where}:{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _durations(item, f"{where}:{number}")
