"""Servers and packages: each lack is named with its address or its package, and no password is shown."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.health_server import HealthServer

from containers.launch.docker.state import ImageState
from tasks.checks.services import package_findings, service_finding, vllm_finding


@pytest.fixture
def server() -> Iterator[HealthServer]:
    server = HealthServer()
    yield server
    server.close()


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


def test_nobody_listening_is_said_with_the_address_and_only_prefect_is_needed() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        rows = [service_finding("Prefect", f"{url}/api"), service_finding("MLflow", url)]
    assert [row.verdict for row in rows] == ["failure", "warning"]
    assert rows[1].found == f"{url}: cannot be reached (Connection refused)"


def test_credentials_are_sent_and_never_shown(server: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:canary")
    monkeypatch.setenv("PREFECT_API_URL", f"{server.url}/api")
    monkeypatch.delenv("PREFECT_API_KEY", raising=False)
    row = service_finding("Prefect", f"{server.url.replace('//', '//user:canary@')}/api")
    login = "Basic YWRtaW46Y2FuYXJ5"
    assert server.seen == [("/api/health", login), ("/api/admin/version", login)]
    assert "canary" not in row.model_dump_json()


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


@pytest.mark.waits
def test_checking_packages_imports_none_of_them() -> None:
    code = "import sys, tasks.check_system as c; c.package_findings(); print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & {"torch", "transformers", "trl", "datasets", "peft", "accelerate"}


def test_vllm_is_looked_for_where_the_stages_run() -> None:
    without, with_it = ImageState(name="rlhf-stage:gpu"), ImageState(name="mine:gpu", extras=("vllm==0.29.0",))
    assert vllm_finding("docker", with_it).verdict == "ok"
    row = vllm_finding("docker", without)
    assert row.verdict == "failure"
    assert "build.sh --tag rlhf-stage:gpu --with vllm==0.29.0" in row.advice
    assert "--set train_policy.rollout_engine=shared_prompts" in row.advice
