"""The entry program: it refuses on drift before torch, and its outcome is the only word that counts."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.digests import verify_artifact
from containers.contracts.hardware import BatchPlan, GpuProfile, RequiredContract
from containers.contracts.names import StageName
from containers.contracts.outcome import FailureKind, StageFailure
from containers.contracts.spec import StageInput, StageSpec
from containers.formatting import size
from containers.harness.measure import drift_message, measure_contract
from containers.stages.entry import _finish, _finish_rank

pytestmark = pytest.mark.waits

KEY = "a" * 64


def _spec(tmp_path: Path, rows: list[dict[str, Any]], **changes: Any) -> StageSpec:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    fields: dict[str, Any] = {
        "stage": StageName.FILTER_DATASET,
        "key": KEY,
        "config": FilterDatasetConfig(
            check_language_on_text=False,
            minimum_train_pairs=1,
            minimum_validation_pairs=1,
            minimum_policy_prompts=0,
            validation_fraction=0.3,
        ),
        "inputs": (StageInput(name="train_data", path=str(data), digest="sha256:0"),),
        "seed": 1,
        "profile": GpuProfile(name="cpu", num_gpus=0, precision="float32"),
        "batch": BatchPlan(
            global_batch_size=1, per_device_batch_size=1, num_processes=1, gradient_accumulation_steps=1
        ),
        "required": RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False),
        "runtime": "process",
        "work_path": str(work),
    }
    return StageSpec(**{**fields, **changes})


def _run(spec: StageSpec, tmp_path: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    spec_file = tmp_path / "spec.json"
    spec_file.write_text(spec.model_dump_json())
    command = [sys.executable, "-m", "containers.stages.entry", str(spec_file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def _outcome(spec: StageSpec) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads((Path(spec.work_path) / "outcome.json").read_text())
    return outcome


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "domain": "general",
            "language": "english",
            "context": [{"role": "user", "content": f"What is {number} plus one?"}],
            "response1": f"It is {number + 1}.",
            "response2": "No idea.",
            "overall_preference": -2,
            "individual_preference": [],
        }
        for number in range(count)
    ]


def test_a_finished_stage_leaves_a_manifest_that_verifies_and_a_result(tmp_path: Path) -> None:
    spec = _spec(tmp_path, _rows(40))
    ended = _run(spec, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert _outcome(spec)["outcome"] == "result"
    manifest = verify_artifact(Path(spec.work_path) / "output")
    assert "train.parquet" in {entry.path for entry in manifest.files}
    assert manifest.lineage[0].name == "train_data"


def test_too_little_shared_memory_is_refused_with_both_numbers(tmp_path: Path) -> None:
    wanted = 900 * 1024**3
    required = RequiredContract(shm_size_bytes=wanted, num_gpus=0, enforced=False)
    spec = _spec(tmp_path, _rows(40), required=required)
    assert _run(spec, tmp_path).returncode == 1
    outcome = _outcome(spec)
    found = os.statvfs("/dev/shm")
    assert outcome["kind"] == "missing_prerequisite"
    assert "921,600 MiB" in outcome["message"]
    assert f"{found.f_frsize * found.f_blocks / 1024**2:,.0f} MiB" in outcome["message"]


def test_a_changed_variable_is_drift(tmp_path: Path) -> None:
    required = RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False, environment=(("OMP_NUM_THREADS", "7"),))
    spec = _spec(tmp_path, _rows(40), required=required)
    _run(spec, tmp_path, env={**os.environ, "OMP_NUM_THREADS": "3"})
    assert "variable OMP_NUM_THREADS: the spec asks for 7, this process has 3" in _outcome(spec)["message"]


def test_a_limit_is_drift_where_it_was_to_be_enforced_and_a_remark_where_it_could_not_be(tmp_path: Path) -> None:
    def limit_stack() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (4 * 1024**2, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    for enforced, code in ((True, 1), (False, 0)):
        required = RequiredContract(
            shm_size_bytes=0, num_gpus=0, enforced=enforced, stack_bytes=8 * 1024**2, memlock_bytes=0
        )
        spec = _spec(tmp_path, _rows(40), required=required)
        ended = _run(spec, tmp_path, preexec_fn=limit_stack)
        assert ended.returncode == code, ended.stdout
        assert "ulimit stack" in ended.stdout


def test_limits_read_as_sizes_and_a_limit_that_nobody_demands_as_any(tmp_path: Path) -> None:
    required = RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False, memlock_bytes=0, stack_bytes=8 * 1024**2)
    found = {item.name: item for item in measure_contract(_spec(tmp_path, [], required=required)).findings}
    assert (found["ulimit memlock"].wanted, found["ulimit memlock"].verdict) == ("any", "ok")
    assert found["ulimit stack"].wanted == "8.00 MiB"
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    assert found["ulimit stack"].found == ("unlimited" if stack == resource.RLIM_INFINITY else size(stack))
    assert found["/dev/shm"].wanted == "any"


A, B = "GPU-5f3c1e0a-0000-4000-8000-00000000000a", "GPU-5f3c1e0a-0000-4000-8000-00000000000b"


@pytest.mark.parametrize(
    ("wanted", "visible", "found"),
    [
        ((A, B), None, ""),
        ((B,), B, ""),
        ((B,), "1", ""),
        ((A,), B, f"the spec asks for {A}, this process has {B}"),
        ((A, B), A, f"the spec asks for {A}, {B}, this process has {A}"),
        ((A,), "7", f"the spec asks for {A}, this process has 0"),
        ((A,), "", f"the spec asks for {A}, this process has 0"),
    ],
)
def test_other_gpus_than_the_leased_ones_are_drift(
    tmp_path: Path, smi: pytest.MonkeyPatch, wanted: tuple[str, ...], visible: str | None, found: str
) -> None:
    smi.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        smi.setenv("CUDA_VISIBLE_DEVICES", visible)
    required = RequiredContract(shm_size_bytes=0, num_gpus=len(wanted), gpu_uuids=wanted, enforced=False)
    measured = measure_contract(_spec(tmp_path, [], required=required))
    assert ("GPUs: " + found if found else "") in drift_message(measured)
    assert bool(measured.drifted) == bool(found)


@pytest.mark.parametrize(("image_digest", "advice"), [("sha256:1", "run `make image`"), ("", "start it again")])
def test_programs_of_another_version_than_the_orchestrators_are_refused(
    tmp_path: Path, image_digest: str, advice: str
) -> None:
    required = RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False, stages_digest="sha256:" + "0" * 64)
    spec = _spec(tmp_path, _rows(40), required=required, image_digest=image_digest)
    assert _run(spec, tmp_path).returncode == 1
    assert advice in _outcome(spec)["message"]


def test_a_failed_stage_leaves_no_manifest_behind(tmp_path: Path) -> None:
    spec = _spec(tmp_path, [])
    assert _run(spec, tmp_path).returncode == 1
    assert _outcome(spec)["kind"] == "bad_data"
    assert not (Path(spec.work_path) / "output" / "MANIFEST.json").exists()


def test_a_thread_that_a_library_left_running_does_not_hold_up_a_finished_stage(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()"
    )
    spec = _spec(tmp_path, _rows(40))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = _run(spec, tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith(" s.\n")
    assert _outcome(spec)["outcome"] == "result"


def test_a_stale_outcome_of_an_earlier_attempt_is_gone_before_anything_else_happens(tmp_path: Path) -> None:
    spec = _spec(tmp_path, _rows(40))
    stale = Path(spec.work_path) / "outcome.json"
    stale.write_text('{"outcome": "result"}')
    broken = spec.model_copy(update={"inputs": ()})
    _run(broken, tmp_path)
    assert _outcome(spec)["outcome"] == "failure"


def test_a_stage_that_is_told_to_stop_says_that_it_was_cancelled(tmp_path: Path) -> None:
    spec = _spec(tmp_path, _rows(20_000), config=FilterDatasetConfig(minimum_train_pairs=1))
    spec_file = tmp_path / "spec.json"
    spec_file.write_text(spec.model_dump_json())
    process = subprocess.Popen([sys.executable, "-m", "containers.stages.entry", str(spec_file)])
    try:
        _wait_for(Path(spec.work_path) / "events.jsonl")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 1
    finally:
        process.kill()
    assert _outcome(spec)["kind"] == "cancelled"
    assert not (Path(spec.work_path) / "output" / "MANIFEST.json").exists()


@pytest.mark.waits
def test_what_every_rank_says_stands_in_the_log_once_and_what_fails_under_its_rank(tmp_path: Path) -> None:
    spec = _spec(tmp_path, _rows(40))
    (tmp_path / "work/output").mkdir()
    by_rank = {}
    for rank in ("0", "1"):
        by_rank[rank] = _run(spec, tmp_path, env={**os.environ, "RANK": rank})
        assert by_rank[rank].returncode == 0, by_rank[rank].stderr
    assert by_rank["0"].stdout.strip()
    assert (by_rank["1"].stdout + by_rank["1"].stderr).strip() == ""
    failed = _run(spec.model_copy(update={"inputs": ()}), tmp_path, env={**os.environ, "RANK": "1"})
    assert failed.returncode == 1
    assert "[rank 1] " in failed.stdout


@pytest.mark.parametrize(
    ("first_rank", "other_rank", "told"),
    [
        ("cancelled", "diverged", "diverged"),
        ("cancelled", "unexpected", "unexpected"),
        ("unexpected", "diverged", "diverged"),
        ("cancelled", "cancelled", "cancelled"),
        ("bad_data", "diverged", "bad_data"),
    ],
)
def test_what_the_first_rank_only_felt_is_explained_by_the_rank_that_failed(
    tmp_path: Path, first_rank: str, other_rank: str, told: str
) -> None:
    """torchrun stops the first rank, or its connection breaks: neither says why."""
    spec = _spec(tmp_path, [])

    def failure(kind: str) -> StageFailure:
        return StageFailure(stage=spec.stage, key=spec.key, kind=FailureKind(kind), message=f"It was {kind}.")

    _finish_rank(spec, failure(other_rank), rank=1)
    assert _finish(spec, failure(first_rank)) == 1
    assert _outcome(spec)["kind"] == told
    assert _outcome(spec)["message"].startswith("Rank 1: " if told != first_rank else "It was")


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_spec_that_cannot_be_read_is_exit_code_two(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    ended = subprocess.run(
        [sys.executable, "-m", "containers.stages.entry", str(bad)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "cannot be read" in ended.stdout
