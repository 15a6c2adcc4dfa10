"""Servers beyond loopback let nobody in without a login, on any route; what they are given as secrets stays theirs."""

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from flows.servers.local import Servers, ServerSettings, local_servers
from flows.servers.process import ServerError

PASSWORD = "canary-4f1c9e7a20"
LOGINS = {
    "PREFECT_SERVER_API_AUTH_STRING": f"team:{PASSWORD}-prefect",
    "MLFLOW_TRACKING_USERNAME": "team",
    "MLFLOW_TRACKING_PASSWORD": f"{PASSWORD}-mlflow",
    "HF_TOKEN": f"hf_{PASSWORD}",
}
WIDE = "0.0.0.0"  # noqa: S104 - with logins
# Pages and what they load, health and version, none of which shows what anybody stored.
OPEN_IN_PREFECT = {"/health", "/ready"}
OPEN_IN_MLFLOW = {
    "/health",
    "/static-files/<path:path>",
    "/api/3.0/mlflow/server-info",
    "/ajax-api/3.0/mlflow/server-info",
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, Path]]:
    """Both servers on every interface, started by a process whose environment holds their logins and a hub token."""
    folder = tmp_path_factory.mktemp("wide")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LOGINS.items():
            patch.setenv(name, value)
        patch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "mlflow.example.org")
        with local_servers(ServerSettings(state_dir=folder, host=WIDE), say=lambda text: None) as servers:
            yield servers, folder


def own_address() -> str:
    """An address of this machine that is not loopback."""
    for items in psutil.net_if_addrs().values():
        for item in items:
            if item.family == socket.AF_INET and not item.address.startswith("127."):
                return str(item.address)
    pytest.skip("THIS MACHINE HAS NO ADDRESS BEYOND LOOPBACK, so nothing was tested on one.")


def ask(url: str, *, method: str = "GET", body: object = None, login: str = "", **headers: str) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if login:
        sent["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    request = urllib.request.Request(url, data=data, headers=sent, method=method)  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as response:
            return response.status, response.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")


def prefect_login() -> str:
    return LOGINS["PREFECT_SERVER_API_AUTH_STRING"]


def mlflow_login() -> str:
    return f"{LOGINS['MLFLOW_TRACKING_USERNAME']}:{LOGINS['MLFLOW_TRACKING_PASSWORD']}"


def routes(api: dict[str, dict[str, dict[str, object]]]) -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, methods in api["paths"].items() for method in methods]


def test_every_route_of_prefect_wants_the_login(wide: tuple[Servers, Path]) -> None:
    servers, _ = wide
    status, text = ask(f"{servers.prefect_api_url}/openapi.json", login=prefect_login())
    if status != 200:
        status, text = ask(f"{servers.prefect_ui_url}/openapi.json", login=prefect_login())
    assert status == 200
    found = routes(json.loads(text))
    assert len(found) > 100
    status, text = ask(f"{servers.prefect_api_url}/csrf-token?client=stranger", login=prefect_login())
    assert status == 200
    # With a token of its own, so that what refuses it is the missing login.
    csrf = {"Prefect_Csrf_Token": json.loads(text)["token"], "Prefect_Csrf_Client": "stranger"}
    open_routes = set()
    for method, path in found:
        bare, body = path.removeprefix("/api"), {} if method != "GET" else None
        status, _ = ask(f"{servers.prefect_api_url}{bare}", method=method, body=body, **csrf)
        if status != 401:
            open_routes.add(bare)
    assert open_routes <= OPEN_IN_PREFECT


@pytest.mark.parametrize("path", ["/events/in", "/events/out", "/logs/out", "/task_runs/subscriptions/scheduled"])
def test_every_websocket_of_prefect_wants_the_login(wide: tuple[Servers, Path], path: str) -> None:
    servers, _ = wide
    url = servers.prefect_api_url.replace("http://", "ws://") + path

    async def talk(token: str) -> object:
        async with connect(url, subprotocols=["prefect"], proxy=None) as websocket:  # type: ignore[list-item]
            await websocket.send(json.dumps({"type": "auth", "token": token}))
            return json.loads(await asyncio.wait_for(websocket.recv(), 20))["type"]

    assert asyncio.run(talk(prefect_login())) == "auth_success"
    with pytest.raises(ConnectionClosed):
        asyncio.run(talk("team:wrong"))


def test_every_route_of_mlflow_wants_the_login(wide: tuple[Servers, Path]) -> None:
    servers, _ = wide
    script = (
        "import json, os; os.environ['MLFLOW_FLASK_SERVER_SECRET_KEY'] = 'x'\n"
        "from mlflow.server import app\n"
        "from mlflow.server.fastapi_app import app as fast\n"
        "flask = [[m, r.rule] for r in app.url_map.iter_rules() for m in r.methods - {'HEAD', 'OPTIONS'}]\n"
        "kept = [r for r in fast.routes if hasattr(r, 'methods')]\n"
        "native = [[m, r.path] for r in kept for m in r.methods - {'HEAD', 'OPTIONS'}]\n"
        "print(json.dumps(flask + native))"
    )
    listed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(listed.stdout.splitlines()[-1])
    assert len(found) > 100
    open_routes = {
        f"{method} {path}"
        for method, path in found
        if ask(
            servers.mlflow_uri + path.replace("<", "").replace(">", "").replace("path:", ""), method=method, body={}
        )[0]
        != 401
    }
    assert {route.split()[1] for route in open_routes} <= OPEN_IN_MLFLOW


def test_with_the_login_both_answer_under_every_name_of_this_machine(wide: tuple[Servers, Path]) -> None:
    servers, _ = wide
    for host in ("127.0.0.1", "localhost", own_address(), socket.gethostname()):
        mlflow = servers.mlflow_uri.replace("127.0.0.1", host)
        body = {"max_results": 1}
        search = f"{mlflow}/ajax-api/2.0/mlflow/experiments/search"
        assert ask(search, method="POST", body=body, login=mlflow_login(), Origin=mlflow)[0] == 200, host
        prefect = servers.prefect_api_url.replace("127.0.0.1", host)
        assert ask(f"{prefect}/admin/version", login=prefect_login())[0] == 200, host


@pytest.mark.parametrize(("host", "status"), [("mlflow.example.org", 200), ("evil.example.org", 403)])
def test_mlflow_answers_under_names_that_were_allowed_and_no_other(
    wide: tuple[Servers, Path], host: str, status: int
) -> None:
    servers, _ = wide
    url = f"{servers.mlflow_uri}/api/2.0/mlflow/experiments/search?max_results=1"
    assert ask(url, login=mlflow_login(), Host=host)[0] == status


def test_a_page_of_another_site_may_not_read_prefects_answers(wide: tuple[Servers, Path]) -> None:
    servers, _ = wide
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for origin, allowed in (("https://evil.example.org", None), (servers.prefect_ui_url, servers.prefect_ui_url)):
        request = urllib.request.Request(f"{servers.prefect_api_url}/health", headers={"Origin": origin})  # noqa: S310
        with opener.open(request, timeout=20) as response:
            assert response.headers.get("Access-Control-Allow-Origin") == allowed


def test_the_own_clients_of_this_process_log_in_by_themselves(wide: tuple[Servers, Path]) -> None:
    servers, _ = wide
    assert os.environ["PREFECT_API_AUTH_STRING"] == prefect_login()
    script = (
        "from prefect.client.orchestration import get_client\n"
        "from mlflow import MlflowClient\n"
        "print(get_client(sync_client=True).api_version(), len(MlflowClient().search_experiments()))"
    )
    addresses = {"PREFECT_API_URL": servers.prefect_api_url, "MLFLOW_TRACKING_URI": servers.mlflow_uri}
    asked = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | addresses, capture_output=True, text=True, timeout=120
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.split()[1] == "1"


def test_no_password_stands_in_a_command_the_record_or_a_log(wide: tuple[Servers, Path]) -> None:
    _, folder = wide
    groups = [server["pid"] for server in json.loads((folder / "servers.json").read_text())["servers"]]
    ours = [process for process in psutil.process_iter() if _group(process.pid) in groups]
    assert len(ours) >= 2
    assert not [process for process in ours if PASSWORD in " ".join(process.cmdline())]
    for path in (folder / "servers.json", folder / "prefect/server.log", folder / "mlflow/server.log"):
        assert PASSWORD not in path.read_text()
    assert (folder / "mlflow/flask_secret_key").stat().st_mode & 0o777 == 0o600


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def test_each_server_gets_its_own_secrets_only(wide: tuple[Servers, Path]) -> None:
    _, folder = wide
    for server in json.loads((folder / "servers.json").read_text())["servers"]:
        held = psutil.Process(server["pid"]).environ().values()
        found = {value for value in held if PASSWORD in value}
        own = prefect_login() if server["name"] == "prefect" else LOGINS["MLFLOW_TRACKING_PASSWORD"]
        assert found == {own}


@pytest.mark.parametrize(("name", "variable"), [("Prefect", "PREFECT_API_AUTH_STRING"), ("MLflow", "MLFLOW_TRACKING_")])
def test_who_comes_to_running_servers_with_a_wrong_login_is_told_which_variable(
    wide: tuple[Servers, Path], monkeypatch: pytest.MonkeyPatch, name: str, variable: str
) -> None:
    _, folder = wide
    wrong = "team:not-the-one-it-wants"
    if name == "Prefect":
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", wrong)
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", wrong)
    refused = rf"The {name} server at http://127.0.0.1:\d+ runs, but it refuses the login in {variable}.*\(HTTP 401"
    with (
        pytest.raises(ServerError, match=refused) as caught,
        local_servers(ServerSettings(state_dir=folder), say=print),
    ):
        pass
    assert wrong not in str(caught.value)


@pytest.mark.parametrize(
    ("login", "expected"),
    [
        (None, r"it demands a login \(HTTP 401 Unauthorized\); set PREFECT_API_AUTH_STRING"),
        ("team:wrong", r"it refuses the login in PREFECT_API_AUTH_STRING \(HTTP 401 Unauthorized\); set it to one"),
    ],
)
def test_a_configured_prefect_that_refuses_us_is_told_with_the_variable(
    wide: tuple[Servers, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str | None, expected: str
) -> None:
    servers, _ = wide
    monkeypatch.delenv("PREFECT_API_AUTH_STRING")
    if login:
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", login)
    monkeypatch.setenv("PREFECT_API_URL", servers.prefect_api_url)  # whose login it is
    settings = ServerSettings(state_dir=tmp_path, prefect_api_url=servers.prefect_api_url)
    with pytest.raises(ServerError, match=expected), local_servers(settings, say=print):
        pass
    assert list(tmp_path.iterdir()) == []


def test_logins_in_configured_addresses_go_to_the_clients_and_out_of_the_addresses(
    wide: tuple[Servers, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, _ = wide
    for name in ("PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(name)
    said: list[str] = []
    settings = ServerSettings(
        state_dir=tmp_path,
        prefect_api_url=servers.prefect_api_url.replace("//", f"//{prefect_login()}@"),
        mlflow_uri=servers.mlflow_uri.replace("//", f"//{mlflow_login()}@"),
    )
    with local_servers(settings, say=said.append) as found:
        assert (found.prefect_api_url, found.mlflow_uri) == (servers.prefect_api_url, servers.mlflow_uri)
        assert os.environ["PREFECT_API_AUTH_STRING"] == prefect_login()
        assert os.environ["MLFLOW_TRACKING_PASSWORD"] == LOGINS["MLFLOW_TRACKING_PASSWORD"]
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    assert said == []


def test_servers_that_are_in_use_on_loopback_are_not_taken_for_wide_ones(
    wide: tuple[Servers, Path], tmp_path: Path
) -> None:
    _, folder = wide
    record = json.loads((folder / "servers.json").read_text())
    for server in record["servers"]:
        server["host"] = "127.0.0.1"
    (tmp_path / "servers.json").write_text(json.dumps(record))
    settings = ServerSettings(state_dir=tmp_path, host=WIDE)
    refused = rf"listens on 127.0.0.1 instead of 0.0.0.0, and is in use \(by pid {os.getpid()}\)"
    with pytest.raises(ServerError, match=refused), local_servers(settings, say=print):
        pass


def test_beyond_loopback_everything_that_is_missing_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*LOGINS, "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ServerError) as caught, local_servers(ServerSettings(state_dir=tmp_path, host=WIDE), say=print):
        pass
    for wanted in ("set PREFECT_SERVER_API_AUTH_STRING to `user:password`", "set MLFLOW_TRACKING_USERNAME", "ssh -L"):
        assert wanted in str(caught.value)
    assert "set MLFLOW_TRACKING_PASSWORD" in str(caught.value)
    assert not (tmp_path / "servers.json").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"PREFECT_SERVER_API_AUTH_STRING": "secretword"},
            "PREFECT_SERVER_API_AUTH_STRING has to read `user:password`",
        ),
        ({"PREFECT_SERVER_API_AUTH_STRING": "admin:pass"}, "has 4 characters; at least 12 are needed"),
        ({"MLFLOW_TRACKING_PASSWORD": "pässwörter-viele"}, "not printable ASCII"),
        ({"PREFECT_API_AUTH_STRING": "team:another"}, "PREFECT_API_AUTH_STRING, by which clients log in, differs"),
    ],
)
def test_a_login_that_protects_nothing_is_refused_without_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], expected: str
) -> None:
    for name, value in {**LOGINS, **changes}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ServerError) as caught, local_servers(ServerSettings(state_dir=tmp_path, host=WIDE), say=print):
        pass
    assert expected in str(caught.value)
    assert not any(value in str(caught.value) for value in (*changes.values(), PASSWORD))


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_ours_is_told_with_those_that_are(tmp_path: Path, host: str) -> None:
    settings = ServerSettings(state_dir=tmp_path, host=host)
    with (
        pytest.raises(ServerError, match=rf"Host `{host}` is n.*It has .*127\.0\.0\.1"),
        local_servers(settings, say=print),
    ):
        pass
