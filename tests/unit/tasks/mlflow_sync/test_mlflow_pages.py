"""Whoever opens MLflow stands before the runs, not before MLflow's pages about agents."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tasks.mlflow_sync.pages import runs_page

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, bytes]]


@pytest.fixture
def serving() -> Iterator[Callable[[Answer], str]]:
    """A server on loopback that answers so; gives its address."""
    servers: list[HTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer(self)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_it_is_the_page_of_the_experiments_runs(
    serving: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        asked.append((request.path, request.headers.get("Authorization")))
        return 200, json.dumps({"experiment": {"experiment_id": "7"}}).encode()

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    uri = serving(answer)
    assert runs_page(f"{uri}/", "Ada's & mine") == f"{uri}/#/experiments/7/runs?workflowType=machine_learning"
    login = f"Basic {base64.b64encode(b'ada:secret').decode()}"
    assert asked == [("/api/2.0/mlflow/experiments/get-by-name?experiment_name=Ada%27s+%26+mine", login)]


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST"}'), (401, b""), (200, b"<html>"), (200, b"[]"), (200, b"{}")],
    ids=["no such experiment", "no login", "no JSON", "a list", "nothing"],
)
def test_a_server_that_does_not_say_is_shown_as_it_is(
    serving: Callable[[Answer], str], status: int, body: bytes
) -> None:
    uri = serving(lambda _: (status, body))
    assert runs_page(uri, "demo") == uri


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "http://127.0.0.1:9"], ids=["a database", "nobody listens"])
def test_what_is_no_server_is_shown_as_it_is(uri: str) -> None:
    assert runs_page(uri, "demo") == uri
