"""A model hub for tests: a real HTTP server that answers what huggingface_hub asks about a few small repositories."""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

Kind = Literal["models", "datasets"]


@dataclass
class Repository:
    """Commits by id, branches by name."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str = ""
    gated: bool = False


class FakeHub:
    """Serves repositories on 127.0.0.1.

    Attributes:
        requests: what was asked, as `METHOD path`.
        status: other than 200, the answer to everything.
        refuses_tokens: every token is expired or made up; a request without one is answered.
        repeats_tokens: errors repeat the header that came with the question.
        cut_off_after: the connection breaks after so many bytes of a file; None: files arrive whole.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.requests: list[str] = []
        self.status = 200
        self.refuses_tokens = False
        self.repeats_tokens = False
        self.cut_off_after: int | None = None
        self.stopped = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def commit(self, kind: Kind, name: str, files: dict[str, bytes], *, branch: str = "main") -> str:
        """Add a commit and move the branch to it; returns its id."""
        repository = self.repositories.setdefault((kind, name), Repository())
        text = json.dumps({path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())})
        commit = hashlib.sha1(f"{name}{text}".encode(), usedforsecurity=False).hexdigest()
        repository.commits[commit] = files
        repository.branches[branch] = commit
        return commit

    def downloads(self) -> list[str]:
        """Paths of the files whose content was sent."""
        return sorted(
            line.split("/resolve/")[1].split("/", 1)[1]
            for line in self.requests
            if line.startswith("GET") and "/resolve/" in line
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No answer any more, not on open connections either."""
        self.stopped = True
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def _json(value: object) -> Answer:
    return Answer(200, json.dumps(value).encode(), (("Content-Type", "application/json"),))


def _error(status: int, code: str, message: str) -> Answer:
    return Answer(
        status, json.dumps({"error": message}).encode(), (("X-Error-Code", code), ("X-Error-Message", message))
    )


def _oid(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _answer(hub: FakeHub, path: str, authorization: str) -> Answer:
    parts = [unquote(part) for part in path.strip("/").split("/")]
    api = parts[0] == "api"
    kind: Kind = "datasets" if "datasets" in parts[:2] else "models"
    if api or parts[0] == "datasets":
        parts = parts[2:] if api else parts[1:]
    if len(parts) < 4:
        return _error(404, "", "Not found")
    name, verb, revision, rest = "/".join(parts[:2]), parts[2], parts[3], "/".join(parts[4:])
    repository = hub.repositories.get((kind, name))
    if hub.status != 200:
        return _error(hub.status, "", f"Internal error {authorization if hub.repeats_tokens else ''}")
    if hub.refuses_tokens and authorization:
        return _error(401, "", "Invalid credentials in Authorization header")
    if repository is None or (repository.token and not repository.gated and repository.token not in authorization):
        # The real hub does not tell a private repository from one that does not exist.
        return _error(404 if authorization else 401, "RepoNotFound", "Repository not found")
    if repository.gated and verb == "resolve" and repository.token not in authorization:
        # The real hub lists the files of a gated repository for all.
        return _error(403 if authorization else 401, "GatedRepo", f"Access to {name} is restricted")
    commit = repository.branches.get(revision, revision)
    files = repository.commits.get(commit)
    if files is None:
        return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    if verb == "revision":
        siblings = [{"rfilename": file, "size": len(data), "blobId": _oid(data)} for file, data in files.items()]
        return _json({"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0})
    if verb == "tree":
        return _json(
            [{"type": "file", "path": file, "size": len(data), "oid": _oid(data)} for file, data in files.items()]
        )
    if rest not in files:
        return _error(404, "EntryNotFound", "Entry not found")
    return Answer(200, files[rest], (("X-Repo-Commit", commit), ("ETag", f'"{_oid(files[rest])}"')))


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if hub.stopped:
                self.close_connection = True
                return
            path = urlsplit(self.path).path
            hub.requests.append(f"{self.command} {path}")
            answer = _answer(hub, path, self.headers.get("Authorization", ""))
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command == "GET":
                cut = hub.cut_off_after if "/resolve/" in path else None
                self.wfile.write(answer.body[:cut])
                self.close_connection = cut is not None

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Tests are quiet."""

    return Handler
