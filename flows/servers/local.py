"""The Prefect and MLflow servers of a run: the configured ones, else started on loopback and stopped at the end.

Imports neither Prefect nor MLflow: both are child processes, so the command line stays fast.
"""

import atexit
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from flows.servers.access import usable_address, variables_set
from flows.servers.commands import TITLES
from flows.servers.logins import login_file
from flows.servers.process import ServerError, log_tail
from flows.servers.record import read_record
from flows.servers.settings import ServerSettings
from flows.servers.start import Say
from flows.servers.use import ServersUse
from flows.signals import signals_end_the_block
from tasks.mlflow_sync.pages import runs_page
from tasks.mlflow_sync.start import MlflowStart

__all__ = ["ServerSettings", "Servers", "local_servers", "login_hint", "serve_until_interrupted"]


@dataclass(frozen=True)
class Servers:
    """Addresses of the two servers of a run, and whether MLflow is up yet."""

    prefect_api_url: str
    prefect_ui_url: str
    mlflow_uri: str
    mlflow_start: MlflowStart = field(default_factory=MlflowStart, compare=False)


@contextmanager
def local_servers(
    settings: ServerSettings, *, say: Say, meanwhile: Callable[[Servers], None] | None = None
) -> Iterator[Servers]:
    """Provide two healthy servers during the block.

    A configured address is only checked. Else servers that already run for `settings.state_dir` are used, or both are
    started at once. They stop when their last user leaves, also after Ctrl-C, SIGTERM and SIGHUP. If a server demands a
    login, this process's environment holds it for clients during the block; the addresses hold none.

    Args:
        meanwhile: called with the addresses while Prefect starts: for imports, which take seconds. MLflow then starts
            after Prefect, and the block begins when Prefect answers; `Servers.mlflow_start` says when MLflow does.

    Raises:
        ServerError: an address does not answer or refuses this process, a port is taken, a login is missing, a database
            cannot be used, the state folder cannot be used, a server does not become healthy in time.
    """
    find = partial(usable_address, state_dir=settings.state_dir, say=say)
    prefect_given, prefect_login = find("prefect", settings.prefect_api_url)
    mlflow_given, mlflow_login = find("mlflow", settings.mlflow_uri)
    given = {"prefect": prefect_given, "mlflow": mlflow_given}
    use = ServersUse(settings, wanted=tuple(name for name, url in given.items() if url is None), say=say)
    with signals_end_the_block():
        atexit.register(use.leave)
        try:
            urls = use.begin(first="prefect" if meanwhile else None) if use.wanted else {}
            prefect = (prefect_given or f"{urls['prefect']}/api").rstrip("/")
            servers = Servers(
                prefect_api_url=prefect,
                prefect_ui_url=prefect.removesuffix("/api"),
                mlflow_uri=mlflow_given or urls["mlflow"],
            )
            with variables_set({**prefect_login, **mlflow_login, **use.client_variables}):
                if meanwhile is not None:
                    meanwhile(servers)
                yield replace(servers, mlflow_start=use.finish())
        finally:
            use.leave()
            atexit.unregister(use.leave)


def serve_until_interrupted(settings: ServerSettings, *, say: Say, experiment: str = "") -> None:
    """Keep both servers up until Ctrl-C; the body of `rlhf ui`.

    Args:
        experiment: of MLflow, whose runs to show; empty: all.

    Raises:
        ServerError: as `local_servers`; also when a server ends unexpectedly.
    """
    with suppress(KeyboardInterrupt), local_servers(settings, say=say) as servers:
        mlflow = runs_page(servers.mlflow_uri, experiment) if experiment else servers.mlflow_uri
        say(f"Prefect: {servers.prefect_ui_url}{login_hint(settings.state_dir)}\nMLflow:  {mlflow}\nCtrl-C ends this.")
        watched = read_record(settings.state_dir).servers
        while True:
            time.sleep(1.0)
            for server in watched:
                if not server.lives:
                    raise ServerError(
                        f"The {TITLES[server.name]} server (pid {server.pid}) has ended unexpectedly. Last lines of "
                        f"{server.log_path}:\n{log_tail(Path(server.log_path))}"
                    )


def login_hint(state_dir: Path) -> str:
    """Text after the address of a Prefect that demands the login made for this folder; else empty."""
    has_own = any(server.has_own_login for server in read_record(state_dir).servers if server.name == "prefect")
    return f" (login: {login_file(state_dir)})" if has_own else ""
