"""The check is the last moment at which nothing was spent: each lack is one row, and no broken check hides another."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.docker_daemon import FakeDaemon
from fakes.health_server import HealthServer
from fakes.hub_server import FakeHub

from containers.contracts.configs.evaluate_reward_model import SuiteFile
from containers.contracts.hardware import GpuProfile
from containers.contracts.names import StageName
from containers.contracts.records import CheckFinding
from containers.launch.gpus.drivers import NO_CUDA
from tasks.check_system import failures, refusal, run_checks, table
from tasks.config.run import RunConfig
from tasks.config.sources import DatasetSource, ModelSource
from tasks.plan.figures import Figure, StagePlan
from tasks.plan.run_plan import RunPlan, draft_plan
from tasks.run.runtime import present_stages_digest
from tests.unit.factories.run_config import run_config
from tests.unit.factories.weight_bytes import weight_bytes

CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32", shm_size_gib=0.01)
TWO_GPUS = GpuProfile(name="2x48gb", num_gpus=2, num_processes=2, gpu_memory_gib=48, shm_size_gib=0.01)
IMAGE = "rlhf-stage:cpu"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run as processes, on servers that it starts itself, with next to nothing to do."""
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}\n')
    made = run_config(
        "checked",
        output_dir=tmp_path / "outputs",
        store_dir=tmp_path / "outputs/store",
        profile=CPU,
        runtime={"kind": "process", "image": IMAGE},
    )
    return made.model_copy(update={"dataset": DatasetSource(train=str(tmp_path / "rows.jsonl"))})


def on_servers(config: RunConfig, prefect_api_url: str, mlflow_uri: str) -> RunConfig:
    tracking = config.tracking.model_copy(update={"prefect_api_url": prefect_api_url, "mlflow_uri": mlflow_uri})
    return config.model_copy(update={"tracking": tracking})


def with_runtime(config: RunConfig, kind: str) -> RunConfig:
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"kind": kind})})


def plan_that_needs(config: RunConfig, *, disk_bytes: float = 1, memory_bytes: float = 0) -> RunPlan:
    disk, memory = (Figure("", value, "bytes", "estimated") for value in (disk_bytes, memory_bytes))
    stage = StagePlan(StageName.TRAIN_POLICY, "runs", disk=disk, host_memory=memory)
    return replace(draft_plan(config), stages=(stage,))


@pytest.fixture
def server() -> Iterator[HealthServer]:
    server = HealthServer()
    yield server
    server.close()


def _rows(config: RunConfig) -> dict[str, CheckFinding]:
    findings = run_checks(config, plan_that_needs(config))
    rows = {finding.name: finding for finding in findings}
    assert len(rows) == len(findings), "every row has a name of its own"
    return rows


def test_a_machine_that_has_everything_passes(config: RunConfig, server: HealthServer) -> None:
    ready = on_servers(config, f"{server.url}/api", server.url)
    rows = _rows(ready)
    assert failures(tuple(rows.values())) == ()
    assert {path for path, _ in server.seen} == {
        "/api/health",
        "/api/admin/version",
        "/health",
        "/api/2.0/mlflow/experiments/search?max_results=1",
    }
    expected = {"runtime", "stage packages", "GPUs", "/dev/shm", "ulimit memlock", "memory", "CPUs", "disk"}
    assert expected | {"network interface", "Prefect", "MLflow", "dataset"} == set(rows)


def test_vllm_is_asked_for_only_where_it_writes_the_completions(config: RunConfig, server: HealthServer) -> None:
    ready = on_servers(config, f"{server.url}/api", server.url)
    assert "vLLM" not in _rows(ready)
    policy = ready.train_policy.model_copy(update={"rollout_engine": "vllm"})
    with_vllm = ready.model_copy(update={"train_policy": policy})
    row = _rows(with_vllm)["vLLM"]
    assert (row.verdict, "fastapi" in row.advice) == ("failure", True)


def test_every_lack_is_reported_at_once(config: RunConfig, tmp_path: Path, smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "busy")
    smi.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    smi.setattr("tasks.check_system.installed_cuda", lambda: NO_CUDA)
    suites = (SuiteFile(name="mine", path=str(tmp_path / "no-pairs.jsonl")),)
    lacking = on_servers(config, "http://127.0.0.1:1/api", "http://127.0.0.1:1").model_copy(
        update={
            "gpu_profile": TWO_GPUS,
            "base_model": ModelSource(path=str(tmp_path / "no-model")),
            "dataset": DatasetSource(train=str(tmp_path / "no-rows.jsonl")),
            "evaluate_reward_model": config.evaluate_reward_model.model_copy(update={"suites": suites}),
            "tokenizer_file": tmp_path / "no.tiktoken",
        }
    )
    needed = plan_that_needs(config, disk_bytes=10**18, memory_bytes=10**15)
    failed = {row.name: row for row in failures(run_checks(lacking, needed))}
    assert set(failed) == {
        *("GPU 0", "NVIDIA driver", "disk", "memory", "base model", "dataset", "suite mine", "tokenizer_file"),
        "Prefect",
    }
    assert all(row.advice for row in failed.values())
    assert failed["GPU 0"].found == "GPU 0: 38000/49140 MiB used by others (pid 123 python)"
    assert failed["NVIDIA driver"].found == "570.86.15; the torch of this Python is built without CUDA"
    assert failed["dataset"].found == f"dataset.train: {tmp_path / 'no-rows.jsonl'} does not exist."


def test_a_check_that_breaks_is_a_row_and_the_others_still_speak(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(profile: GpuProfile) -> CheckFinding:
        raise ZeroDivisionError(profile.name)

    monkeypatch.setattr("tasks.check_system.cpu_finding", broken)
    rows = _rows(config)
    assert rows["CPUs"].verdict == "failure"
    assert "the check itself broke: ZeroDivisionError" in rows["CPUs"].found
    assert rows["dataset"].verdict == "ok"


@pytest.mark.waits
def test_hanging_servers_cost_seconds_together(config: RunConfig, server: HealthServer) -> None:
    server.status = 0
    started = time.monotonic()
    hanging = on_servers(config, f"{server.url}/api", server.url)
    rows = _rows(hanging)
    assert time.monotonic() - started < 8
    assert "no answer within 5 s" in rows["Prefect"].found
    assert "no answer within 5 s" in rows["MLflow"].found


def test_gpus_are_judged_by_what_a_process_would_inherit(config: RunConfig, smi: pytest.MonkeyPatch) -> None:
    smi.setenv("CUDA_VISIBLE_DEVICES", "1")
    rows = _rows(config.model_copy(update={"gpu_profile": TWO_GPUS}))
    assert rows["GPUs"].verdict == "failure"
    assert "CUDA_VISIBLE_DEVICES=1 of 2" in rows["GPUs"].found


def test_docker_without_its_image_fails_where_auto_falls_back_with_a_warning(
    config: RunConfig, daemon: FakeDaemon
) -> None:
    asked = _rows(with_runtime(config, "docker"))
    assert asked["stage image"].verdict == "failure"
    assert "stage packages" not in asked
    fallen = _rows(with_runtime(config, "auto"))
    assert fallen["runtime"].verdict == "warning" and "make image" in fallen["runtime"].advice
    assert fallen["stage packages"].verdict == "ok"


@pytest.mark.parametrize(
    ("labels", "failed"),
    [({"rlhf.stages_digest": "sha256:" + "b" * 64}, "stage programs in the image"), ({}, "stage image")],
    ids=["stale", "somebody else's"],
)
def test_an_image_not_of_the_present_sources_fails_docker_and_auto_does_without(
    config: RunConfig, daemon: FakeDaemon, labels: dict[str, str], failed: str
) -> None:
    daemon.add_image(IMAGE, labels=labels)
    asked = _rows(with_runtime(config, "docker"))[failed]
    assert asked.verdict == "failure" and "make image IMAGE=" in asked.advice
    fallen = _rows(with_runtime(config, "auto"))
    assert failures(tuple(fallen.values())) == ()
    assert (fallen["runtime"].verdict, fallen["runtime"].advice) == ("warning", asked.advice)


@pytest.mark.usefixtures("no_daemon")
def test_docker_without_a_daemon_fails_and_auto_needs_none(config: RunConfig) -> None:
    assert _rows(with_runtime(config, "docker"))["Docker daemon"].verdict == "failure"
    assert _rows(with_runtime(config, "auto"))["runtime"].verdict == "ok"


def test_an_image_from_the_present_sources_passes(config: RunConfig, daemon: FakeDaemon) -> None:
    daemon.add_image(IMAGE, labels={"rlhf.stages_digest": present_stages_digest()})
    rows = _rows(with_runtime(config, "auto"))
    assert rows["stage programs in the image"].verdict == "ok"
    assert rows["/dev/shm"].found.startswith("Docker makes it")


def test_a_model_on_the_hub_is_found_with_the_users_token_and_not_without(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "config.json": b"{}",
        "model.safetensors": weight_bytes(b"w"),
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"x",
    }
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.setenv("HF_TOKEN", "hf_canary")
        commit = hub.commit("models", "org/tiny", files)
        hub.repositories["models", "org/tiny"].token = "hf_canary"
        hub.repositories["models", "org/tiny"].gated = True
        named = config.model_copy(update={"base_model": ModelSource(hub_id="org/tiny", revision="main")})
        findings = run_checks(named, plan_that_needs(config))
        monkeypatch.delenv("HF_TOKEN")
        assert _rows(named)["base model"].verdict == "failure"
    row = next(row for row in findings if row.name == "base model")
    assert row.verdict == "ok" and row.found.startswith(f"org/tiny@{commit}")
    assert "hf_canary" not in table(findings)


def test_a_refusal_joins_what_was_found_into_clean_sentences() -> None:
    row = CheckFinding(
        name="dataset", found="x.jsonl does not exist.", wanted="data files", verdict="failure", advice="Correct it."
    )
    assert refusal((row, row.model_copy(update={"found": "2", "wanted": "4", "advice": ""}))).splitlines() == [
        "The run does not start; nothing was spent.",
        "  dataset: found x.jsonl does not exist, wanted data files. Correct it.",
        "  dataset: found 2, wanted 4.",
    ]


def test_the_table_shows_every_row_and_the_advice_of_the_bad_ones() -> None:
    findings = (
        CheckFinding(name="CPUs", found="2", wanted="1", verdict="ok", advice="nobody needs this"),
        CheckFinding(name="disk", found="1 GiB free at /data", wanted="9 GiB", verdict="failure", advice="Free it."),
    )
    text = table(findings, width=100)
    lines = text.splitlines()
    assert lines[0].split() == ["check", "found", "wanted"]
    assert lines[1].split() == ["ok", "CPUs", "2", "1"]
    assert lines[2].startswith("FAILURE  disk")
    assert lines[3].strip() == "→ Free it."
    assert "nobody needs this" not in text


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_the_table_keeps_long_text_whole_at_any_width(width: int) -> None:
    words = [f"word{number}" for number in range(40)]
    finding = CheckFinding(name="x", found=" ".join(words), wanted="y", verdict="warning", advice=" ".join(words))
    text = table((finding,), width=width)
    assert all(text.count(f"{word} ") + text.count(f"{word}\n") + text.endswith(word) >= 2 for word in words)
    if width >= 80:
        assert max(len(line) for line in text.splitlines()) <= width


def test_a_row_that_quotes_a_line_shows_no_secret(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "rlhf:canary41d7a9b8c7")
    (tmp_path / "login").write_text("rlhf:canary41d7a9b8c7\n")
    found = _rows(config.model_copy(update={"dataset": DatasetSource(train=str(tmp_path / "login"))}))["dataset"]
    assert "is no JSON" in found.found
    assert "canary41d7a9b8c7" not in found.model_dump_json()
