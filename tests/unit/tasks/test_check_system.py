"""The check is the last moment at which nothing was spent: each lack is one row, and no broken check hides another."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.docker_daemon import FakeDaemon
from fakes.health_server import HealthServer
from fakes.hub_server import FakeHub

from containers.contracts.configs.suites import SuiteFile
from containers.contracts.hardware import GpuProfile
from containers.contracts.records import CheckFinding
from tasks.check_system import CheckRequest, failures, refusal, run_checks, table
from tasks.run.runtime import present_stages_digest
from tasks.sources.resolve import DatasetSource, ModelSource
from tests.unit.factories.weight_bytes import weight_bytes

CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32", shm_size_gib=0.01)
TWO_GPUS = GpuProfile(name="2x48gb", num_gpus=2, num_processes=2, gpu_memory_gib=48, shm_size_gib=0.01)
IMAGE = "rlhf-stage:cpu"


@pytest.fixture
def request_(tmp_path: Path) -> CheckRequest:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}\n')
    return CheckRequest(
        profile=CPU,
        runtime="process",
        image=IMAGE,
        output_dir=tmp_path / "outputs",
        disk_needed_bytes=1,
        model=None,
        dataset=DatasetSource(train=str(tmp_path / "rows.jsonl")),
    )


@pytest.fixture
def server() -> Iterator[HealthServer]:
    server = HealthServer()
    yield server
    server.close()


def _rows(request: CheckRequest) -> dict[str, CheckFinding]:
    findings = run_checks(request)
    rows = {finding.name: finding for finding in findings}
    assert len(rows) == len(findings), "every row has a name of its own"
    return rows


def test_a_machine_that_has_everything_passes(request_: CheckRequest, server: HealthServer) -> None:
    ready = replace(request_, prefect_api_url=f"{server.url}/api", mlflow_tracking_uri=server.url)
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


def test_vllm_is_asked_for_only_where_it_writes_the_completions(request_: CheckRequest, server: HealthServer) -> None:
    ready = replace(request_, prefect_api_url=f"{server.url}/api", mlflow_tracking_uri=server.url)
    assert "vLLM" not in _rows(ready)
    row = _rows(replace(ready, needs_vllm=True))["vLLM"]
    assert (row.verdict, "fastapi" in row.advice) == ("failure", True)


def test_every_lack_is_reported_at_once(request_: CheckRequest, tmp_path: Path, smi: pytest.MonkeyPatch) -> None:
    smi.setenv("FAKE_SMI", "busy")
    smi.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    lacking = replace(
        request_,
        profile=TWO_GPUS,
        disk_needed_bytes=10**18,
        memory_needed_bytes=10**15,
        model=ModelSource(path=str(tmp_path / "no-model")),
        dataset=DatasetSource(train=str(tmp_path / "no-rows.jsonl")),
        suites=(SuiteFile(name="mine", path=str(tmp_path / "no-pairs.jsonl")),),
        tokenizer_file=tmp_path / "no.tiktoken",
        prefect_api_url="http://127.0.0.1:1/api",
        mlflow_tracking_uri="http://127.0.0.1:1",
    )
    failed = {row.name: row for row in failures(run_checks(lacking))}
    assert set(failed) == {
        *("GPU 0", "disk", "memory", "base model", "dataset", "suite mine", "tokenizer_file"),
        "Prefect",
    }
    assert all(row.advice for row in failed.values())
    assert failed["GPU 0"].found == "GPU 0: 38000/49140 MiB used by others (pid 123 python)"
    assert failed["dataset"].found == f"dataset.train: {tmp_path / 'no-rows.jsonl'} does not exist."


def test_a_check_that_breaks_is_a_row_and_the_others_still_speak(
    request_: CheckRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(profile: GpuProfile) -> CheckFinding:
        raise ZeroDivisionError(profile.name)

    monkeypatch.setattr("tasks.check_system.cpu_finding", broken)
    rows = _rows(request_)
    assert rows["CPUs"].verdict == "failure"
    assert "the check itself broke: ZeroDivisionError" in rows["CPUs"].found
    assert rows["dataset"].verdict == "ok"


def test_hanging_servers_cost_seconds_together(request_: CheckRequest, server: HealthServer) -> None:
    server.status = 0
    started = time.monotonic()
    hanging = replace(request_, prefect_api_url=f"{server.url}/api", mlflow_tracking_uri=server.url)
    rows = _rows(hanging)
    assert time.monotonic() - started < 8
    assert "no answer within 5 s" in rows["Prefect"].found
    assert "no answer within 5 s" in rows["MLflow"].found


def test_gpus_are_judged_by_what_a_process_would_inherit(request_: CheckRequest, smi: pytest.MonkeyPatch) -> None:
    smi.setenv("CUDA_VISIBLE_DEVICES", "1")
    rows = _rows(replace(request_, profile=TWO_GPUS))
    assert rows["GPUs"].verdict == "failure"
    assert "CUDA_VISIBLE_DEVICES=1 of 2" in rows["GPUs"].found


def test_docker_without_its_image_fails_where_auto_falls_back_with_a_warning(
    request_: CheckRequest, daemon: FakeDaemon
) -> None:
    asked = _rows(replace(request_, runtime="docker"))
    assert asked["stage image"].verdict == "failure"
    assert "stage packages" not in asked
    fallen = _rows(replace(request_, runtime="auto"))
    assert fallen["runtime"].verdict == "warning" and "make image" in fallen["runtime"].advice
    assert fallen["stage packages"].verdict == "ok"


@pytest.mark.parametrize(
    ("labels", "failed"),
    [({"rlhf.stages_digest": "sha256:" + "b" * 64}, "stage programs in the image"), ({}, "stage image")],
    ids=["stale", "somebody else's"],
)
def test_an_image_not_of_the_present_sources_fails_docker_and_auto_does_without(
    request_: CheckRequest, daemon: FakeDaemon, labels: dict[str, str], failed: str
) -> None:
    daemon.add_image(IMAGE, labels=labels)
    asked = _rows(replace(request_, runtime="docker"))[failed]
    assert asked.verdict == "failure" and "make image IMAGE=" in asked.advice
    fallen = _rows(replace(request_, runtime="auto"))
    assert failures(tuple(fallen.values())) == ()
    assert (fallen["runtime"].verdict, fallen["runtime"].advice) == ("warning", asked.advice)


@pytest.mark.usefixtures("no_daemon")
def test_docker_without_a_daemon_fails_and_auto_needs_none(request_: CheckRequest) -> None:
    assert _rows(replace(request_, runtime="docker"))["Docker daemon"].verdict == "failure"
    assert _rows(replace(request_, runtime="auto"))["runtime"].verdict == "ok"


def test_an_image_from_the_present_sources_passes(request_: CheckRequest, daemon: FakeDaemon) -> None:
    daemon.add_image(IMAGE, labels={"rlhf.stages_digest": present_stages_digest()})
    rows = _rows(replace(request_, runtime="auto"))
    assert rows["stage programs in the image"].verdict == "ok"
    assert rows["/dev/shm"].found.startswith("Docker makes it")


def test_a_model_on_the_hub_is_found_with_the_users_token_only_when_allowed(
    request_: CheckRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        named = replace(request_, model=ModelSource(hub_id="org/tiny", revision="main"))
        assert _rows(named)["base model"].verdict == "failure"
        findings = run_checks(replace(named, token_present=True))
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
    request_: CheckRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "rlhf:canary41d7a9b8c7")
    (tmp_path / "login").write_text("rlhf:canary41d7a9b8c7\n")
    found = _rows(replace(request_, dataset=DatasetSource(train=str(tmp_path / "login"))))["dataset"]
    assert "is no JSON" in found.found
    assert "canary41d7a9b8c7" not in found.model_dump_json()
