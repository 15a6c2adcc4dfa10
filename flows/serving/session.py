"""The work of `rlhf serve`: the two servers, the deployments, and runs that users start in the browser.

Nothing here imports Prefect before its address is known.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from flows.forms.folders import ALLOWED_VARIABLE
from flows.forms.pipeline import CONFIGS_VARIABLE, configs_folder, run_configs
from flows.servers.commands import PORT_KEYS, TITLES, URL_KEYS
from flows.servers.local import Servers, ServerSettings, local_servers, login_hint
from flows.servers.process import ServerError
from flows.servers.record import read_record
from flows.signals import EndedBySignal, exit_code_after, how_it_ended, signals_end_the_block, signals_ignored
from flows.terminal import TerminalDisplay
from tasks.config.errors import ConfigError, near_match
from tasks.config.run_sections import TrackingSection
from tasks.config.yaml_reader import read_yaml_file
from tasks.mlflow_sync.pages import runs_page

if TYPE_CHECKING:
    from flows.serving.runner import Serving

_LOCK = "serve.lock"
_WATCH_EVERY_S = 1.0
# Longest wait for MLflow before the text on what to click; MLflow may take longer.
_MLFLOW_LIMIT_S = 60.0
# The flow of `rlhf run`: its runs are checked too.
_TERMINAL_FLOW = "rlhf"
_OPTIONS = {
    **{key: f"--{name}-port" for name, key in PORT_KEYS.items()},
    URL_KEYS["prefect"]: "PREFECT_API_URL",
    URL_KEYS["mlflow"]: "MLFLOW_TRACKING_URI",
}


@dataclass(frozen=True)
class ServeSettings:
    """Settings from the command line.

    Attributes:
        configs: folder of the run configurations that the forms offer.
        limit: runs at a time.
        allowed_folders: folders outside of this one that runs from a form may use.
        retrain: the run configuration to retrain at the times of `cron`; empty: no schedule is set.
        cron: five fields, in UTC.
    """

    configs: Path
    limit: int
    servers: ServerSettings
    retrain: str = ""
    cron: str = ""
    allowed_folders: tuple[Path, ...] = ()


def serve(settings: ServeSettings) -> int:
    """Serve until a user or a signal ends it, and return the exit code.

    Raises:
        ConfigError: the folder holds no run configuration, or not the one to retrain.
        ServerError: a server cannot be used, or `rlhf serve` runs here already.
    """
    say = TerminalDisplay().say
    _use_configs(settings.configs)
    _allow_folders(settings.allowed_folders)
    _require_retrained(settings.retrain)
    with _told_by_option(), signals_end_the_block(), _sole_serving(settings.servers.state_dir):
        try:
            use = partial(_use_and_import, state_dir=settings.servers.state_dir)
            with local_servers(settings.servers, say=say, meanwhile=use) as servers:
                _serve(settings, servers, say=say)
        except (KeyboardInterrupt, EndedBySignal) as ending:
            say(f"{how_it_ended(ending)}. Runs that were at work go on from the last good step by Retry.")
            return 0 if isinstance(ending, KeyboardInterrupt) else exit_code_after(ending)
    return 0


def _use_configs(folder: Path) -> None:
    os.environ[CONFIGS_VARIABLE] = str(folder)
    if not run_configs():
        raise ConfigError(
            f"{folder.absolute()} holds no run configuration (*.yaml), so no form could offer one. Start `rlhf serve` "
            "in the folder of your project, or name the folder with --configs."
        )


def _allow_folders(folders: tuple[Path, ...]) -> None:
    """Add the folders to the variable that the runs' processes inherit."""
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ConfigError(f"--allow-folder: {', '.join(missing)} is no folder. Make it first, or correct the name.")
    before = [folder for folder in os.environ.get(ALLOWED_VARIABLE, "").split(os.pathsep) if folder]
    os.environ[ALLOWED_VARIABLE] = os.pathsep.join([*before, *(str(folder.resolve()) for folder in folders)])


def _require_retrained(name: str) -> None:
    if name and name not in run_configs():
        there = near_match(name, sorted(run_configs())) or f"There is none in {configs_folder().absolute()}."
        raise ConfigError(f"--retrain: `{name}` is no run configuration. {there}")


@contextmanager
def _told_by_option() -> Iterator[None]:
    """Name options and variables in errors instead of keys of a run configuration.

    Raises:
        ServerError: the one that was raised inside, with the changed text.
    """
    try:
        yield
    except ServerError as error:
        text = str(error)
        for key, name in _OPTIONS.items():
            text = text.replace(key, name)
        raise ServerError(text) from error


@contextmanager
def _sole_serving(state_dir: Path) -> Iterator[None]:
    """Allow one `rlhf serve` at a time in a state folder; the kernel frees the lock of a dead one."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(state_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ServerError(
            f"{state_dir.absolute()}, where the servers keep their state, cannot be used: {error}."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServerError(_already_served(state_dir, os.pread(descriptor, 20, 0).decode())) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _already_served(state_dir: Path, pid: str) -> str:
    found = [f"{server.name} at port {server.port}" for server in read_record(state_dir).servers if server.lives]
    where = f" ({', '.join(found)})" if found else ""
    return (
        f"`rlhf serve` runs here already: process {pid or 'unknown'}{where}. Use that one, or end it first; it serves "
        f"every run of {state_dir.parent.absolute()}."
    )


def _use_and_import(servers: Servers, *, state_dir: Path) -> None:
    """Point this process and the runs at the servers, and then import Prefect, while they start."""
    # A process that can write there can run code here: not in the home folder, and for this user only.
    os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(state_dir.resolve() / "results"))
    os.environ["PREFECT_API_URL"] = servers.prefect_api_url
    os.environ["MLFLOW_TRACKING_URI"] = servers.mlflow_uri
    # The lines of a run are on its page; the console, a pipe to this process, gets its start and end only. A run that
    # outlives this process would die of its next line on the console.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from flows.serving.deployments import served_flows

    served_flows()


def _serve(settings: ServeSettings, servers: Servers, *, say: Callable[[str], None]) -> None:
    from flows.serving.deployments import make_deployments, served_flows
    from flows.serving.runner import Serving, settle

    flows = served_flows()
    names = [_TERMINAL_FLOW, *(flow.name for flow in flows)]
    say_of_runs = cache(say)  # the same line only once
    settle(names, say=say_of_runs)
    serving = Serving(
        make_deployments(flows),
        flows=flows,
        limit=settings.limit,
        flow_names=names,
        say=say,
        say_of_runs=say_of_runs,
    )
    try:
        _start(serving, servers)
        _set_schedule(settings, say=say)
        servers.mlflow_start.wait(limit_s=_MLFLOW_LIMIT_S)
        say(_what_to_click(servers, [flow.name for flow in flows], hint=login_hint(settings.servers.state_dir)))
        _watch(serving, settings.servers.state_dir, say=say)
    finally:
        with signals_ignored():
            serving.end()


def _watch(serving: "Serving", state_dir: Path, *, say: Callable[[str], None]) -> None:
    """Serve as long as Prefect runs, and never return. Report the end of MLflow, and go on, as a run does.

    Raises:
        ServerError: Prefect has ended.
    """
    told: set[int] = set()
    while True:
        time.sleep(_WATCH_EVERY_S)
        serving.raise_error()
        for gone in read_record(state_dir).servers:
            if gone.lives or gone.pid in told:
                continue
            text = f"The {TITLES[gone.name]} server (pid {gone.pid}) has ended unexpectedly; see {gone.log_path}."
            if gone.name == "prefect":
                raise ServerError(text)
            told.add(gone.pid)
            say(f"{text} Runs go on and keep its data on disk. Start `rlhf serve` again to start it.")


def _start(serving: "Serving", servers: Servers) -> None:
    try:
        serving.start()
    except Exception as error:
        raise ServerError(
            f"Prefect at {servers.prefect_ui_url} did not take the deployments: {type(error).__name__}: {error}\n"
            "Check that this is the right server, that this client supports its version, and, if it demands a login, "
            "that PREFECT_API_AUTH_STRING is set."
        ) from error


def _set_schedule(settings: ServeSettings, *, say: Callable[[str], None]) -> None:
    if not settings.retrain:
        return
    from flows.serving.deployments import RetrainSchedule, set_retrain_schedule

    wanted = RetrainSchedule(start_from=settings.retrain, cron=settings.cron)
    try:
        set_retrain_schedule(wanted)
    except Exception as error:
        raise ServerError(f"Prefect did not take the schedule {wanted}: {type(error).__name__}: {error}") from error
    say(f"Scheduled: {wanted}. It stays until you remove it on the page of that deployment.")


def _what_to_click(servers: Servers, names: list[str], *, hint: str) -> str:
    mlflow = "".join(f"MLflow   {page}\n" for page in _mlflow_pages(servers))
    return (
        f"\nPrefect  {servers.prefect_ui_url}{hint}\n{mlflow}\n"
        f"To start a run: {servers.prefect_ui_url}/deployments, choose `{names[0]}`, then Run and Custom run; pick "
        f"what to start from, and Submit.\nA part of the pipeline, or a retraining: {', '.join(names[1:])}.\n"
        "Ctrl-C ends this; runs that are at work are stopped in good order first."
    )


def _mlflow_pages(servers: Servers) -> list[str]:
    """Pages of the runs that the forms start; if MLflow is not up, its address and state."""
    if servers.mlflow_start.problem:
        return [f"{servers.mlflow_uri} (does not start; see above)"]
    if not servers.mlflow_start.is_up:
        return [f"{servers.mlflow_uri} (is starting)"]
    pages = [runs_page(servers.mlflow_uri, experiment, is_made=True) for experiment in experiments()]
    return list(dict.fromkeys(pages))


def experiments() -> list[str]:
    """MLflow experiments of the run configurations, sorted; unreadable configurations are skipped."""
    usual = str(TrackingSection.model_fields["experiment"].default)
    found = set()
    for path in run_configs().values():
        with suppress(ConfigError):
            tracking = read_yaml_file(path, shown=path.name).get("tracking")
            named = tracking.get("experiment") if isinstance(tracking, dict) else None
            found.add(named if isinstance(named, str) and named else usual)
    return sorted(found) or [usual]
