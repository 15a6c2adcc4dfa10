"""A Docker daemon for tests: a real HTTP server on a Unix socket that answers the few questions that a check asks."""

import json
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

_HANG_S = 3


class FakeDaemon:
    """Answers /version, /info and /images/<name>/json.

    Args:
        path: of the socket; at most about 100 characters.
    """

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self.behaviour: Literal["ok", "hang", "nonsense", "error"] = "ok"
        self.info: dict[str, Any] = {
            "ServerVersion": "27.0.1",
            "Runtimes": {"runc": {"path": "runc"}},
            "MemTotal": 64 * 1024**3,
        }
        self._images: dict[str, dict[str, str]] = {}
        self._server = _Server(str(path), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def add_image(self, name: str, *, labels: dict[str, str]) -> None:
        self._images[name] = labels

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, Any]:
        """Status and body for a path without its version prefix."""
        if path.endswith("/version"):
            return 200, {"ApiVersion": "1.46", "MinAPIVersion": "1.24", "Version": "27.0.1"}
        if path.endswith("/info"):
            return 200, self.info
        if "/images/" in path and path.endswith("/json"):
            name = unquote(path.split("/images/", 1)[1].removesuffix("/json"))
            if name in self._images:
                return 200, {"Id": "sha256:" + "c" * 64, "RepoTags": [name], "Config": {"Labels": self._images[name]}}
            return 404, {"message": f"No such image: {name}"}
        return 404, {"message": "page not found"}


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False


def _handler(daemon: FakeDaemon) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = daemon.answer(urlsplit(self.path).path)
            text = json.dumps(body).encode()
            if daemon.behaviour == "hang":
                time.sleep(_HANG_S)
            elif daemon.behaviour == "nonsense":
                text = b"<html>It works!</html>"
            elif daemon.behaviour == "error":
                status, text = 500, json.dumps({"message": "could not find bridge docker0"}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: object) -> None:
            """Tests are quiet."""

    return Handler
