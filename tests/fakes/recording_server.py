"""A server on 127.0.0.1 that writes down what it is sent, answers everything alike, and may redirect."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class RecordingServer:
    """Attributes:
    requests: the headers of every request, names in lower case, and its `method` and `path`.
    redirects_to: where every question is sent on to; empty: it is answered.
    answer: JSON that every question gets.
    """

    def __init__(self, *, redirects_to: str = "", answer: str = "{}") -> None:
        self.requests: list[dict[str, str]] = []
        self.redirects_to = redirects_to
        self.answer = answer
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                recorder.requests.append({**headers, "method": self.command, "path": self.path})
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(307 if recorder.redirects_to else 200)
                if recorder.redirects_to:
                    self.send_header("Location", recorder.redirects_to + self.path)
                answer = recorder.answer.encode()
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def logins(self) -> list[str]:
        """Every login that arrived."""
        return [request["authorization"] for request in self.requests if "authorization" in request]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
