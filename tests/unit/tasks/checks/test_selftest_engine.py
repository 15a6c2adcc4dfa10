"""A run whose policy writes by vLLM on GPUs starts it once before it trains anything, and remembers that."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from containers.contracts.configs.selftest import Measured, Measurement, Selftest
from containers.contracts.records import CheckFinding
from tasks.checks.selftest import engine, planned
from tasks.checks.selftest.engine import engine_finding
from tasks.checks.selftest.judging import judged
from tasks.checks.selftest.launching import Launch, Machine
from tasks.checks.selftest.problems import Facts
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.run.runtime import CodeIdentity
from tasks.store.selftests import keep_selftest, working_folder

RUN = "configs/runs/helpsteer3-qwen3-8b.yaml"
CODE = CodeIdentity(runtime="docker", reason="", image_digest="sha256:one", stages_digest="s")
WORKS = Measured(
    probe="rollouts",
    values=(
        Measurement(name="start", value=64.0, unit="s", of="vllm"),
        Measurement(name="rate", value=9000.0, unit="tokens/s"),
    ),
)


@pytest.fixture
def trials(smi: pytest.MonkeyPatch, tmp_path: Path) -> list[Measured]:
    """What each start of the engine will measure, last first; two free cards."""
    smi.setenv("FAKE_SMI", "ok")
    smi.setenv("RLHF_GPU_LEASES", str(tmp_path / "leases"))
    left: list[Measured] = []

    def started(machine: Machine, launch: Launch) -> list[Measured]:
        assert launch.probes == ("rollouts",) and len(machine.gpu_ids) == 1 and machine.folder.is_dir()
        assert getattr(launch.config, "rollout_engine", "") == "vllm"
        return [left.pop()]

    smi.setattr(engine, "measured", started)
    return left


def run_of(project: Path, tmp_path: Path, *overrides: str, profile: str = "1x48gb") -> RunConfig:
    settings = [f"run.store_dir={tmp_path / 'store'}", *overrides]
    return load_run_config(project / RUN, overrides=settings, profile=profile).config


def looked(run: RunConfig, code: CodeIdentity = CODE, said: list[str] | None = None) -> CheckFinding | None:
    told: list[str] = [] if said is None else said
    return engine_finding(run, code, should_stop=lambda: False, say=told.append)


def test_it_is_started_once_for_each_image_and_the_row_says_how_fast_it_is(
    project: Path, tmp_path: Path, trials: list[Measured]
) -> None:
    trials += [WORKS, WORKS]
    run, said = run_of(project, tmp_path), list[str]()
    first = looked(run, said=said)
    assert first is not None and first.verdict == "ok"
    assert "vLLM works: start 1 min 4 s, rate 9,000 tokens/s" in first.found
    assert len(said) == 1 and "before anything is trained" in said[0]
    again = looked(run, said=said)
    assert again is not None and "tried before" in again.found and len(said) == 1
    assert len(trials) == 1
    other = CodeIdentity(runtime="docker", reason="", image_digest="sha256:two", stages_digest="s")
    assert looked(run, other, said) is not None
    assert trials == [], "another image is tried anew"
    assert not [*(tmp_path / "store" / "selftest").glob("running-*")]


def test_one_that_does_not_start_stops_the_run_with_what_to_do_and_is_tried_again(
    project: Path, tmp_path: Path, trials: list[Measured]
) -> None:
    trials += [WORKS, Measured(probe="rollouts", error="Could not find nvcc")]
    failed = looked(run_of(project, tmp_path))
    assert failed is not None and (failed.verdict, failed.found) == ("failure", "Could not find nvcc")
    assert "shared_prompts" in failed.advice
    mended = looked(run_of(project, tmp_path))
    assert mended is not None and mended.verdict == "ok"


def test_a_passed_self_test_of_this_machine_and_code_counts(
    project: Path, tmp_path: Path, trials: list[Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "lab-1")
    run = run_of(project, tmp_path)
    record = Selftest(
        made_at="2026-11-30T10:00:00+00:00",
        host="lab-1",
        profile="1x48gb",
        num_gpus=1,
        precision="bf16",
        card="NVIDIA RTX 6000 Ada Generation",
        runtime="docker",
        image_digest="sha256:one",
        sources="s",
        results=(judged(WORKS, Facts(run.gpu_profile)),),
        duration_s=1,
    )
    keep_selftest(run.store_dir, record)
    found = looked(run)
    assert found is not None and "tried before" in found.found
    trials.append(WORKS)
    keep_selftest(run.store_dir, record.model_copy(update={"sources": "others"}))
    assert looked(run) is not None and trials == []


def test_what_needs_no_vllm_starts_none(project: Path, tmp_path: Path, trials: list[Measured]) -> None:
    by_ranks: Sequence[str] = ("train_policy.rollout_engine=shared_prompts", "train_policy.vllm_memory_fraction=null")
    assert looked(run_of(project, tmp_path, *by_ranks)) is None
    assert looked(run_of(project, tmp_path, profile="cpu")) is None


def test_a_shape_that_is_not_known_is_a_warning(
    project: Path, tmp_path: Path, trials: list[Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "find_model_shape", lambda run: None)
    found = looked(run_of(project, tmp_path))
    assert found is not None and found.verdict == "warning" and "rlhf fetch" in found.found


def test_a_killed_probe_leaves_no_model_for_long(tmp_path: Path) -> None:
    left = tmp_path / "selftest" / "running-999999999-x"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"0" * 100)
    with working_folder(tmp_path) as one, working_folder(tmp_path) as other:
        assert not left.exists() and one.is_dir() and other.is_dir()
    assert [*(tmp_path / "selftest").iterdir()] == []
