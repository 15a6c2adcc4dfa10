"""An HTTP proxy before a real server, whose faults a test switches on and off while both run."""

import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal[
    "none", "refuse", "hang", "error 500", "reset", "slow", "lose answers", "lose each answer once", "refuse a value"
]

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"}
_SLOW_S = 4.0


class FaultProxy:
    """Passes requests on to a server, or does what `fault` says.

    refuse: nobody listens. hang: a request is taken and never answered. error 500: for everything. reset: the
    connection breaks before the answer. slow: four seconds for each answer. lose answers: the server does its work, and
    the connection breaks before it can say so. lose each answer once: the same, until the same request comes again.
    refuse a value: `refused_status` for each message that holds `refused_text`.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.refused_text, self.refused_status = "", 400
        self.num_faults = 0
        self.requests_seen: set[tuple[str, str, bytes]] = set()
        self._fault: Fault = "none"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._server: ThreadingHTTPServer | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._fault = fault
        if fault == "refuse":
            self.stop()
        elif self._server is None:
            self._listen()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _listen(self) -> None:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", self._port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news here."""


class _Handler(BaseHTTPRequestHandler):
    owner: FaultProxy
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.fault
        if fault == "refuse a value" and self.owner.refused_text.encode() not in body:
            fault = "none"
        if fault == "lose each answer once":
            request = (self.command, self.path, body)
            fault = "none" if request in self.owner.requests_seen else "lose answers"
            self.owner.requests_seen.add(request)
        self.owner.num_faults += fault != "none"
        if fault == "error 500":
            self._answer(500, [], b'{"error_code": "INTERNAL_ERROR", "message": "the fault proxy says so"}')
        elif fault == "refuse a value":
            self._answer(
                self.owner.refused_status,
                [],
                b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "the proxy dislikes it"}',
            )
        elif fault in ("reset", "refuse"):
            self._break()
        elif fault == "hang":
            while self.owner.fault == "hang":
                time.sleep(0.05)
            self._break()
        else:
            if fault == "slow":
                time.sleep(_SLOW_S)
            self._pass_on(body, lose_answer=fault == "lose answers")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

    def _pass_on(self, body: bytes, *, lose_answer: bool) -> None:
        target = urlsplit(self.owner.target)
        connection = http.client.HTTPConnection(target.hostname or "", target.port or 80, timeout=60)
        kept = {name: value for name, value in self.headers.items() if name.lower() not in {*_HOP_BY_HOP, "host"}}
        try:
            connection.request(self.command, self.path, body=body, headers=kept)
            answer = connection.getresponse()
            data = answer.read()
        except OSError:
            self._break()
            return
        finally:
            connection.close()
        if lose_answer:
            self._break()
        else:
            self._answer(answer.status, answer.getheaders(), data)

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _break(self) -> None:
        """End the connection with a reset rather than in good order."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def fault_proxy(target: str, *, fault: Fault = "none") -> Iterator[FaultProxy]:
    """A proxy before the server at that address."""
    proxy = FaultProxy(target)
    proxy.fault = fault
    try:
        yield proxy
    finally:
        proxy.fault = "refuse"
