"""A secret that was used is nowhere to be found after the run: each is a canary, and everything that was written and
every program that ran is searched for it."""

import base64
import gzip
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import docker
import psutil
import pytest
from fakes.hub_server import FakeHub
from short_runs import command_line, prepare, read_config, write_config

from flows.demo.rows import write_demo_data
from flows.servers.local import Servers, ServerSettings, local_servers

HUB_TOKEN = "hf_canary7f3a91c2e0b84d56"
BLOCK_TOKEN = "hf_canaryblock55d0e1f7a9c3"
PREFECT_PASSWORD = "canary-prefect-9b1d77e4"
MLFLOW_PASSWORD = "canary-mlflow-c05e3f18"
CANARIES = (HUB_TOKEN, BLOCK_TOKEN, PREFECT_PASSWORD, MLFLOW_PASSWORD)
ENTRY = "containers.stages.entry"

SAVE_BLOCK = """
import sys
from prefect.blocks.system import Secret
Secret(value=sys.stdin.read()).save(sys.argv[1], overwrite=True)
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A hub with the demo's rows, which only the token of each test opens."""
    folder = tmp_path_factory.mktemp("rows")
    write_demo_data(folder)
    with FakeHub() as fake:
        fake.commit("datasets", "org/rows", {path.name: path.read_bytes() for path in folder.glob("*.jsonl")})
        yield fake


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, project: Path, hub: FakeHub) -> Iterator[tuple[Path, Servers]]:
    """A project folder whose runs fetch their rows from the hub, and servers that demand logins."""
    folder = prepare(tmp_path_factory.mktemp("secrets"), project)
    config = read_config(folder)
    config["dataset"] = {"hub_id": "org/rows", "revision": "main", "train": "train.jsonl"}
    config["run"]["until"] = "filter_dataset"
    write_config(folder, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_SERVER_API_AUTH_STRING", f"team:{PREFECT_PASSWORD}")
        patch.setenv("MLFLOW_TRACKING_USERNAME", "team")
        patch.setenv("MLFLOW_TRACKING_PASSWORD", MLFLOW_PASSWORD)
        patch.setenv("HF_TOKEN", HUB_TOKEN)  # of no use to servers, so it must not reach them either
        patch.setenv("HOME", str(folder / "home"))
        settings = ServerSettings(state_dir=folder / "outputs/.servers", host="0.0.0.0")  # noqa: S104 - with logins
        with local_servers(settings, say=lambda text: None) as servers:
            patch.delenv("HF_TOKEN")
            yield folder, servers


@dataclass
class Onlooker:
    """Looks at every process of this machine again and again, as another user's `ps` could, and as its owner can."""

    stages: set[int] = field(default_factory=set)
    seen: list[str] = field(default_factory=list)
    containers: dict[str, str] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.is_set():
            for process in psutil.process_iter():
                self._look_at(process)
            self._look_at_containers()
            time.sleep(0.03)

    def _look_at(self, process: psutil.Process) -> None:
        try:
            words = process.cmdline()
            if any(canary in word for word in words for canary in CANARIES):
                self.seen.append(f"command line: {words}")
            if ENTRY in words:
                self.stages.add(process.pid)
                held = [name for name, value in process.environ().items() if any(c in value for c in CANARIES)]
                self.seen.extend(f"{name} of {words}" for name in held)
        except (psutil.Error, OSError):
            return

    def _look_at_containers(self) -> None:
        if os.environ.get("RLHF_CANARY_DOCKER"):
            client = docker.from_env()
            for found in client.api.containers(all=True, filters={"label": "rlhf.stage"}):
                with suppress(docker.errors.NotFound):  # removed between the two questions
                    self.containers[found["Id"]] = str(client.api.inspect_container(found["Id"]))
            client.close()


def run(folder: Path, hub: FakeHub, *changes: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "huggingface"), "COLUMNS": "400"}
    environment |= {"RLHF_HUB_TOKEN_ENDPOINT": hub.url, **variables}
    environment.setdefault("DOCKER_HOST", "unix:///nonexistent.sock")
    return subprocess.run(
        command_line("run", *changes),
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def forms_of(secret: str) -> dict[str, bytes]:
    """The secret as it stands in a text, in hexadecimal, and inside of something longer in base64."""
    found = {"plain": secret.encode(), "hex": secret.encode().hex().encode()}
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + secret.encode())
        # Without the characters at either end, which also depend on the neighbours.
        found[f"base64, shifted by {shift}"] = coded[4 if shift else 0 : -4]
    return found


def written_down(folder: Path) -> list[str]:
    """Files below the folder that hold a canary in any form, databases and their logs among them."""
    found = []
    num_files = 0
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        num_files += 1
        data = path.read_bytes()
        if path.suffix == ".gz":
            data += gzip.decompress(data)
        for canary in CANARIES:
            found += [f"{path}: {canary} ({form})" for form, text in forms_of(canary).items() if text in data]
    assert num_files > 20
    return found


def test_every_form_of_a_secret_would_be_found(tmp_path: Path) -> None:
    for number, text in enumerate((HUB_TOKEN, base64.b64encode(f"a:{HUB_TOKEN}, and".encode()).decode())):
        for copy in range(11):
            (tmp_path / f"{number}-{copy}").write_text(f"before {text} after")
    assert len(written_down(tmp_path)) == 22


@pytest.mark.slow
def test_a_token_of_the_environment_opens_the_hub_and_stays_in_the_orchestrator(
    place: tuple[Path, Servers], hub: FakeHub
) -> None:
    folder, _ = place
    hub.repositories[("datasets", "org/rows")].token = HUB_TOKEN
    with Onlooker() as onlooker:
        ended = run(folder, hub, "run.name=environment", HF_TOKEN=HUB_TOKEN)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert onlooker.stages
    assert onlooker.seen == []
    assert written_down(folder) == []
    assert not [canary for canary in CANARIES if canary in ended.stdout + ended.stderr]


@pytest.mark.slow
def test_a_token_of_a_secret_block_opens_the_hub_and_is_stored_encrypted_only(
    place: tuple[Path, Servers], hub: FakeHub
) -> None:
    folder, servers = place
    hub.repositories[("datasets", "org/rows")].token = BLOCK_TOKEN
    ended = run(folder, hub, "run.name=locked", "run.seed=1", "run.store_dir=store2", HF_HOME=str(folder / "empty"))
    assert "does not exist on the hub, or it is private. No token is set" in ended.stdout
    assert "the Secret block rlhf-hub-token" in ended.stdout
    save_block(servers, "rlhf-hub-token", BLOCK_TOKEN)
    with Onlooker() as onlooker:
        ended = run(folder, hub, "run.name=block", "run.seed=2", "run.store_dir=store2", HF_HOME=str(folder / "empty"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert onlooker.stages
    assert onlooker.seen == []
    assert written_down(folder) == []
    assert not [canary for canary in CANARIES if canary in ended.stdout + ended.stderr]


@pytest.mark.slow
def test_a_hub_that_repeats_the_token_in_its_error_does_not_bring_it_into_any_log(
    place: tuple[Path, Servers], hub: FakeHub
) -> None:
    folder, _ = place
    with fails_and_repeats(hub):
        ended = run(folder, hub, "run.name=echo", "run.seed=3", HF_TOKEN=HUB_TOKEN, HF_HOME=str(folder / "empty2"))
    assert ended.returncode == 1
    assert "the hub answers with status 500" in ended.stdout
    assert written_down(folder) == []
    assert not [canary for canary in CANARIES if canary in ended.stdout + ended.stderr]


@contextmanager
def fails_and_repeats(hub: FakeHub) -> Iterator[None]:
    hub.status, hub.repeats_tokens = 500, True
    try:
        yield
    finally:
        hub.status, hub.repeats_tokens = 200, False


@pytest.mark.slow
def test_mlflows_login_may_lie_in_a_secret_block(place: tuple[Path, Servers], monkeypatch: pytest.MonkeyPatch) -> None:
    _, servers = place
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    save_block(servers, "rlhf-mlflow-login", f"team:{MLFLOW_PASSWORD}")
    script = (
        "from tasks.sources.secrets import take_mlflow_login; import os\n"
        "take_mlflow_login(os.environ['MLFLOW_TRACKING_URI'])\n"
        "from mlflow import MlflowClient; print(len(MlflowClient().search_experiments()) > 0)"
    )
    asked = in_python(script, servers)
    assert (asked.stdout, asked.returncode) == ("True\n", 0), asked.stderr


@pytest.mark.slow
@pytest.mark.docker
def test_no_container_is_given_a_secret(
    place: tuple[Path, Servers], hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = place
    monkeypatch.setenv("RLHF_CANARY_DOCKER", "1")
    hub.repositories[("datasets", "org/rows")].token = HUB_TOKEN
    docker_host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    changes = ("run.name=docker", "run.seed=4", "runtime.kind=docker")
    with Onlooker() as onlooker:
        ended = run(folder, hub, *changes, HF_TOKEN=HUB_TOKEN, DOCKER_HOST=docker_host)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert onlooker.containers
    assert not [text for text in onlooker.containers.values() if any(canary in text for canary in CANARIES)]
    assert written_down(folder) == []


def save_block(servers: Servers, name: str, value: str) -> None:
    saved = in_python(SAVE_BLOCK, servers, name, stdin=value)
    assert saved.returncode == 0, saved.stderr


def in_python(script: str, servers: Servers, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    addresses = {"PREFECT_API_URL": servers.prefect_api_url, "MLFLOW_TRACKING_URI": servers.mlflow_uri}
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        env=os.environ | addresses,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
