"""A server for tests of the health question: a real HTTP server with one answer for everything."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


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
