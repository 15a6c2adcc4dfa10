"""The check is the last moment at which nothing was spent: each lack is one row, and no broken check hides another."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from fakes.docker_daemon import FakeDaemon
from fakes.hub_server import FakeHub

from containers.contracts.hardware import GpuProfile
from containers.contracts.records import CheckFinding
from containers.digests import source_digest
from tasks.check_rows import package_findings, service_finding
from tasks.check_system import CheckRequest, failures, run_checks, table
from tasks.runtime_choice import choose_runtime
from tasks.sources import DatasetSource, ModelSource

CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32", shm_size_gib=0.01)
TWO_GPUS = GpuProfile(name="2x48gb", num_gpus=2, num_processes=2, gpu_memory_gib=48, shm_size_gib=0.01)
IMAGE = "rlhf-stage:cpu"


@pytest.fixture
def request_(tmp_path: Path) -> CheckRequest:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
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
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "docker.sock") as fake:
        monkeypatch.setenv("DOCKER_HOST", fake.url)
        yield fake


class HealthServer:
    """Answers every GET with one status, and keeps what was asked; status 0 never answers."""

    def __init__(self) -> None:
        self.status = 200
        self.seen: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.seen.append((self.path, self.headers.get("Authorization", "")))
                if outer.status == 0:
                    outer.released.wait(10)
                    return
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Tests are quiet."""

        self.released = threading.Event()
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


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


# --- the whole check


def test_a_machine_that_has_everything_passes(request_: CheckRequest, server: HealthServer) -> None:
    ready = replace(request_, prefect_api_url=f"{server.url}/api", mlflow_tracking_uri=server.url)
    rows = _rows(ready)
    assert failures(tuple(rows.values())) == ()
    assert {path for path, _ in server.seen} == {"/api/health", "/health"}
    expected = {"runtime", "stage packages", "GPUs", "/dev/shm", "ulimit memlock", "memory", "CPUs", "disk"}
    assert expected | {"network interface", "Prefect", "MLflow", "dataset"} == set(rows)


def test_every_lack_is_reported_at_once(
    request_: CheckRequest, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{project / 'tests' / 'fakes'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SMI", "busy")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    lacking = replace(
        request_,
        profile=TWO_GPUS,
        disk_needed_bytes=10**18,
        memory_needed_bytes=10**15,
        model=ModelSource(path=str(tmp_path / "no-model")),
        dataset=DatasetSource(train=str(tmp_path / "no-rows.jsonl")),
        pair_files=(tmp_path / "no-pairs.jsonl",),
        tokenizer_file=tmp_path / "no.tiktoken",
        prefect_api_url="http://127.0.0.1:1/api",
        mlflow_tracking_uri="http://127.0.0.1:1",
    )
    failed = {row.name: row for row in failures(run_checks(lacking))}
    assert set(failed) == {
        *("GPU 0", "disk", "memory", "base model", "dataset", "pair file no-pairs.jsonl", "tokenizer_file"),
        *("Prefect", "MLflow"),
    }
    assert all(row.advice for row in failed.values())
    assert failed["GPU 0"].found == "GPU 0: 38000/49140 MiB used by others (pid 123 python)"
    assert failed["dataset"].found == f"dataset.train: {tmp_path / 'no-rows.jsonl'} does not exist."


def test_a_check_that_breaks_is_a_row_and_the_others_still_speak(request_: CheckRequest) -> None:
    rows = _rows(replace(request_, output_dir=Path("x" * 5000)))
    assert rows["disk"].verdict == "failure"
    assert "the check itself broke: OSError" in rows["disk"].found
    assert rows["dataset"].verdict == "ok"


def test_hanging_tools_and_servers_cost_seconds_together(
    request_: CheckRequest, server: HealthServer, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{project / 'tests' / 'fakes'}{os.pathsep}{os.environ['PATH']}")
    server.status = 0
    started = time.monotonic()
    hanging = replace(request_, prefect_api_url=f"{server.url}/api", mlflow_tracking_uri=server.url)
    rows = _rows(hanging)
    assert time.monotonic() - started < 8
    assert "no answer within 5 s" in rows["Prefect"].found
    assert "no answer within 5 s" in rows["MLflow"].found


def test_gpus_are_judged_by_what_a_process_would_inherit(
    request_: CheckRequest, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{project / 'tests' / 'fakes'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    rows = _rows(replace(request_, profile=TWO_GPUS))
    assert rows["GPUs"].verdict == "failure"
    assert "CUDA_VISIBLE_DEVICES=1 of 2" in rows["GPUs"].found


# --- which runtime


def test_auto_takes_docker_when_daemon_and_image_are_there(daemon: FakeDaemon) -> None:
    daemon.add_image(IMAGE, labels={})
    chosen, reason = choose_runtime("auto", image=IMAGE)
    assert (chosen, reason) == ("docker", "docker: version 27.0.1 answers and rlhf-stage:cpu is there")


def test_auto_takes_processes_when_the_image_is_missing_and_says_so(daemon: FakeDaemon) -> None:
    chosen, reason = choose_runtime("auto", image=IMAGE)
    assert chosen == "process"
    assert reason == "process: Docker answers, but the image rlhf-stage:cpu is not on this machine (`make image`)"


def test_auto_takes_processes_without_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert choose_runtime("auto", image=IMAGE) == ("process", "process: there is no Docker socket")


def test_a_runtime_asked_for_by_name_is_never_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert choose_runtime("docker", image=IMAGE)[0] == "docker"
    assert choose_runtime("process", image=IMAGE)[0] == "process"


def test_docker_without_daemon_or_image_fails_where_auto_only_falls_back(
    request_: CheckRequest, daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _rows(replace(request_, runtime="docker"))
    assert asked["stage image"].verdict == "failure"
    assert "stage packages" not in asked
    fallen = _rows(replace(request_, runtime="auto"))
    assert fallen["runtime"].verdict == "warning" and "make image" in fallen["runtime"].advice
    assert fallen["stage packages"].verdict == "ok"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert _rows(replace(request_, runtime="docker"))["Docker daemon"].verdict == "failure"
    assert _rows(replace(request_, runtime="auto"))["runtime"].verdict == "ok"


def test_an_image_from_the_present_sources_passes(request_: CheckRequest, daemon: FakeDaemon, project: Path) -> None:
    daemon.add_image(IMAGE, labels={"rlhf.stages_digest": source_digest(project / "containers")})
    rows = _rows(replace(request_, runtime="auto"))
    assert rows["stage programs in the image"].verdict == "ok"
    assert rows["/dev/shm"].found.startswith("Docker makes it")


# --- servers


def test_a_server_that_the_run_starts_itself_needs_no_answer() -> None:
    assert service_finding("Prefect", None).verdict == "ok"
    assert service_finding("MLflow", "sqlite:///mlflow.db").verdict == "ok"
    assert service_finding("Prefect", "ftp://host/api").verdict == "failure"


@pytest.mark.parametrize(
    ("status", "path", "advice"),
    [
        (500, "/api", "prefect server start"),
        (401, "/api", "PREFECT_API_AUTH_STRING"),
        (404, "", "Prefect's address ends in /api"),
    ],
)
def test_a_server_that_answers_badly_is_told_apart(server: HealthServer, status: int, path: str, advice: str) -> None:
    server.status = status
    row = service_finding("Prefect", server.url + path)
    assert row.verdict == "failure"
    assert f"answers HTTP {status}" in row.found
    assert advice in row.advice


def test_nobody_listening_is_said_with_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        row = service_finding("MLflow", url)
    assert (row.verdict, row.found) == ("failure", f"{url}: cannot be reached (Connection refused)")


def test_credentials_are_sent_and_never_shown(server: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:canary")
    monkeypatch.delenv("PREFECT_API_KEY", raising=False)
    row = service_finding("Prefect", f"{server.url.replace('//', '//user:canary@')}/api")
    assert server.seen == [("/api/health", "Basic YWRtaW46Y2FuYXJ5")]
    assert "canary" not in row.model_dump_json()


# --- packages of the process runtime


def _install(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Provides-Extra: stages"]
    metadata.write_text("\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires)]) + "\n")


def test_packages_are_compared_with_the_stages_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requires = (
        "pydantic>=2",
        'alpha-lib~=2.13.0; extra == "stages"',
        'beta-lib<2,>=1; extra == "stages"',
        'gamma-lib; extra == "dev"',
    )
    _install(tmp_path, "rlhf-flows", "0.1.0", requires)
    monkeypatch.syspath_prepend(str(tmp_path))
    (row,) = package_findings()
    assert (row.verdict, row.found) == ("failure", "missing: alpha-lib, beta-lib")
    assert "pip install -e .[stages]" in row.advice
    _install(tmp_path, "alpha-lib", "2.13.0+cpu")
    _install(tmp_path, "beta-lib", "2.5")
    (row,) = package_findings()
    assert (row.verdict, row.found) == ("warning", "other versions than tested: beta-lib 2.5 (wanted <2,>=1)")


def test_checking_packages_imports_none_of_them() -> None:
    import subprocess

    code = "import sys, tasks.check_system as c; c.package_findings(); print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & {"torch", "transformers", "trl", "datasets", "peft", "accelerate"}


# --- model on the hub


def test_a_model_on_the_hub_is_found_with_the_users_token_only_when_allowed(
    request_: CheckRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "config.json": b"{}",
        "model.safetensors": b"w",
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


# --- the table


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
