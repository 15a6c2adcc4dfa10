"""A Prefect that is started here lets nobody in without a login, which its owner need not type: other users of the
machine reach loopback too, and whoever reaches Prefect can have code run as its user.
"""

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from short_runs import CONFIG, ENVIRONMENT, prepare, rlhf

from containers.contracts.records import GateVerdict
from flows.servers.local import Servers, ServerSettings, local_servers
from flows.servers.logins import known_login, login_file, own_login
from flows.servers.process import ServerError
from tasks.config.loading import load_run_config
from tasks.store.decisions import Decisions, Question, decision_key

pytestmark = pytest.mark.slow  # starts servers

FOR_A_TERMINAL = """
import sys
from pathlib import Path
from flows.servers.local import ServerSettings, local_servers
settings = ServerSettings(
    state_dir=Path(sys.argv[1]), mlflow_uri="sqlite:///x.db", prefect_database="sqlite+aiosqlite:///nowhere/x.db"
)
with local_servers(settings, say=lambda text: print(text, flush=True)):
    pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Path:
    return prepare(tmp_path_factory.mktemp("own"), project)


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What was said while the servers came up."""
    return []


@pytest.fixture(scope="module")
def settings(folder: Path) -> ServerSettings:
    return ServerSettings(state_dir=folder / "outputs/.servers")


@pytest.fixture(scope="module")
def running(settings: ServerSettings, said: list[str]) -> Iterator[Servers]:
    with local_servers(settings, say=said.append) as servers:
        yield servers


def status(url: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=20) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_nobody_gets_in_without_the_login_which_only_its_owner_can_read(
    running: Servers, settings: ServerSettings, said: list[str]
) -> None:
    assert status(f"{running.prefect_api_url}/admin/version") == 401
    path = login_file(settings.state_dir)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    user, _, password = own_login(settings.state_dir).partition(":")
    assert (user, len(password)) == ("rlhf", 32)
    assert [text for text in said if f"Prefect's login was made now and is in {path}." in text]


def test_the_password_stands_in_no_command_no_log_and_no_record(
    running: Servers, settings: ServerSettings, said: list[str]
) -> None:
    password = own_login(settings.state_dir).partition(":")[2]
    assert not any(password in text for text in said), "this output is no terminal"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            assert password not in " ".join(process.cmdline())
    written = [
        path for path in settings.state_dir.rglob("*") if path.is_file() and path != login_file(settings.state_dir)
    ]
    assert {"servers.json", "server.log"} <= {path.name for path in written}
    assert not [path for path in written if password.encode() in path.read_bytes()]
    assert password not in running.prefect_api_url


def test_a_run_in_the_same_folder_logs_in_by_itself(running: Servers, folder: Path, settings: ServerSettings) -> None:
    ended = rlhf(folder, "run", "run.until=filter_dataset")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"Prefect  {running.prefect_ui_url} (login: outputs/.servers/prefect/login)" in ended.stdout
    assert "made now" not in ended.stdout
    password = own_login(settings.state_dir).partition(":")[2]
    assert password not in ended.stdout + ended.stderr
    outside = [path for path in (folder / "outputs").rglob("*") if path.is_file() and ".servers" not in path.parts]
    assert not [path for path in outside if password.encode() in path.read_bytes()]


def test_whoever_names_the_address_in_the_same_folder_need_not_name_the_login(
    running: Servers, folder: Path, settings: ServerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
    named = replace(settings, prefect_api_url=running.prefect_api_url, mlflow_uri=running.mlflow_uri)
    with local_servers(named, say=print):
        assert os.environ["PREFECT_API_AUTH_STRING"] == own_login(settings.state_dir)
    assert known_login(settings.state_dir, running.prefect_api_url)
    assert known_login(settings.state_dir, "http://127.0.0.1:1/api") == {}, "a login goes to its own server only"
    refused = "it demands a login.*is in outputs/.servers/prefect/login"
    with pytest.raises(ServerError, match=refused), local_servers(replace(named, state_dir=tmp_path), say=print):
        pass


def test_approve_finds_the_login_of_the_server_whose_run_asked(
    running: Servers, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
    gone = str(uuid4())
    config = load_run_config(folder / CONFIG, overrides=["gates.reward_model.approval=required"]).config
    rules = config.gates.reward_model.rules()
    question = Question(
        key=decision_key("reward_model", evaluation_key="a" * 64, evaluation_digest="sha256:0", rules=rules),
        verdict=GateVerdict(name="reward_model", passed=True, rules=()),
        rules=rules,
        run_name=config.run.name,
        run_id="run-1",
        output_dir=str(folder / config.output_dir),
        asked_at="2026-11-24T00:00:00+00:00",
        prefect_api_url=running.prefect_api_url,
        flow_run_id=gone,
    )
    Decisions(folder / config.store_dir).keep_question(question)
    words = ("approve", "-c", CONFIG, "--set", "gates.reward_model.approval=required", "--approve", "--by", "Ada")
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *words, "--reason", "good"],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Flow run {gone} is unknown to Prefect at {running.prefect_api_url}" in done.stdout, "it was not let in"


def test_a_client_login_for_another_server_does_not_hinder(
    running: Servers, settings: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "somebody:at-another-server")
    with local_servers(settings, say=print) as servers:
        assert servers == running
        assert os.environ["PREFECT_API_AUTH_STRING"] == own_login(settings.state_dir)
    assert os.environ["PREFECT_API_AUTH_STRING"] == "somebody:at-another-server"


def test_without_a_login_where_that_is_wanted_and_with_one_again_after_that(tmp_path: Path) -> None:
    wanted = ServerSettings(state_dir=tmp_path, mlflow_uri="sqlite:///x.db")
    said: list[str] = []
    with local_servers(replace(wanted, prefect_login=False), say=said.append) as servers:
        assert status(f"{servers.prefect_api_url}/admin/version") == 200
        assert not login_file(tmp_path).exists()
        with local_servers(wanted, say=said.append) as second:
            assert second == servers, "who uses it wanted it so"
        assert any("It demands no login" in text for text in said)
    record = json.dumps({"servers": [], "users": []})
    (tmp_path / "servers.json").write_text(record)
    with local_servers(wanted, say=said.append) as servers:
        assert status(f"{servers.prefect_api_url}/admin/version") == 401


def test_a_login_file_that_holds_none_is_refused_with_the_way_out(tmp_path: Path) -> None:
    login_file(tmp_path).parent.mkdir()
    login_file(tmp_path).touch()
    settings = ServerSettings(state_dir=tmp_path, mlflow_uri="sqlite:///x.db")
    refused = "Remove the file, and the next start makes a new one"
    with pytest.raises(ServerError, match=refused), local_servers(settings, say=print):
        pass


def test_a_new_login_is_shown_once_on_a_terminal(tmp_path: Path) -> None:
    shown = [_on_a_terminal(tmp_path) for _ in range(2)]
    login = own_login(tmp_path)
    assert f"Prefect's login, made now: {login} " in shown[0]
    assert login not in shown[1]


def _on_a_terminal(state_dir: Path) -> str:
    """What the script prints on a terminal; its server never comes up, which is all the same here."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", FOR_A_TERMINAL, str(state_dir)]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=os.environ | ENVIRONMENT) as started:
        os.close(theirs)
        seen = io.BytesIO()
        with contextlib.suppress(OSError):  # how a terminal ends
            while data := os.read(ours, 4096):
                seen.write(data)
        started.wait()
    os.close(ours)
    return re.sub(r"\s+", " ", seen.getvalue().decode())
