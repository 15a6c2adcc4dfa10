"""What `rlhf run`, `check`, `report` and `ui` do, once the configuration stands. Heavy imports happen here, late."""

import os
import sys
import time
import webbrowser
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from flows.config_errors import InvalidConfigError, Mistake
from flows.config_loading import LoadedConfig
from flows.ending_signals import EndedBySignal, exit_code_after, how_it_ended
from flows.local_servers import Servers, ServerSettings, local_servers, serve_until_interrupted
from flows.plan import draft_plan, plan_run
from flows.terminal import TerminalDisplay, printable
from tasks.display import install_display

_EXIT_FAILED = 1


def run_pipeline(loaded: LoadedConfig, *, command: str) -> int:
    """Run the pipeline with its servers behind it. Returns 0 only when every stage ran and every gate opened."""
    # What cannot work is refused before any server starts.
    plan = plan_run(loaded)
    _require_output_folder(loaded)
    display = TerminalDisplay()
    for warning in plan.warnings:
        display.say(f"Warning: {warning}")
    install_display(display)
    started = time.monotonic()
    try:
        with local_servers(server_settings(loaded), say=display.say) as servers:
            _use(servers)
            display.say(f"Prefect  {servers.prefect_ui_url}\nMLflow   {servers.mlflow_uri}")
            exit_code = _run_flow(loaded, servers, command=command, display=display)
    except (KeyboardInterrupt, EndedBySignal) as ending:
        during = f" during {display.running}" if display.running else ""
        with suppress(OSError):  # after SIGHUP the terminal may be gone
            display.close()
            display.say(
                f"{how_it_ended(ending)}{during}. Nothing that was finished is lost; the same command goes on from "
                f"the last good step: {command}"
            )
        return exit_code_after(ending)
    display.say(f"{time.monotonic() - started:.0f} s in all.")
    _where_to_look(loaded, display)
    return exit_code


def _require_output_folder(loaded: LoadedConfig) -> None:
    place = loaded.config.output_dir.absolute()
    while not os.path.lexists(place):  # False also where it may not be looked at
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return
    what = "cannot be written" if place.is_dir() else "is a file"
    text = f"{place} {what}. Name a folder that can be written, or leave it out: then it is outputs/<run.name>."
    raise InvalidConfigError(str(loaded.path), [Mistake("run.output_dir", text)])


def _run_flow(loaded: LoadedConfig, servers: Servers, *, command: str, display: TerminalDisplay) -> int:
    from prefect.logging.handlers import APILogHandler

    from flows.rlhf import rlhf

    tracking = loaded.config.tracking.model_copy(update={"mlflow_uri": servers.mlflow_uri})
    config = loaded.config.model_copy(update={"tracking": tracking})
    try:
        rlhf(config, command=command, config_yaml=loaded.yaml_text)
    except Exception as error:  # the terminal is the last place where it can be said plainly
        _raise_ending_behind(error)
        display.close()
        display.console.print(f"\n[red]{escape(type(error).__name__)}[/]: {escape(printable(str(error)))}")
        return _EXIT_FAILED
    finally:
        APILogHandler().flush()  # before the server goes
    return 0


def _raise_ending_behind(error: BaseException) -> None:
    """Somebody stopped the run, and then Prefect could not tell its server: that it was stopped is what counts."""
    from prefect.exceptions import TerminationSignal

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (KeyboardInterrupt, EndedBySignal)):
            raise seen
        if isinstance(seen, TerminationSignal):
            raise EndedBySignal(seen.signal)
        seen = seen.__cause__ or seen.__context__


def check(loaded: LoadedConfig) -> int:
    """Print the system check. Returns 0 where nothing hinders a run.

    Raises:
        InvalidConfigError: after the table, where the configuration cannot work with what is there.
    """
    from flows.open_run import check_request
    from tasks.check_system import failures, run_checks, table

    plan = draft_plan(loaded)
    findings = run_checks(check_request(loaded.config, plan=plan))
    console = Console(highlight=False)
    console.print(table(findings), markup=False)
    for warning in plan.warnings:
        console.print(f"Warning: {warning}", markup=False)
    if plan.mistakes:
        raise InvalidConfigError(str(loaded.path), plan.mistakes)
    hindrances = failures(findings)
    console.print(f"{len(hindrances)} of {len(findings)} checks failed." if hindrances else "Ready to run.")
    return _EXIT_FAILED if hindrances else 0


def open_report(loaded: LoadedConfig) -> int:
    """Say where the last report lies, and open it where there is a browser."""
    report = loaded.config.output_dir / "report.html"
    if not report.is_file():
        sys.stderr.write(f"There is no report at {report.resolve()} yet. Start a run: rlhf run -c {loaded.path}\n")
        return _EXIT_FAILED
    sys.stdout.write(f"{report.resolve()}\n")
    if sys.stdout.isatty():
        webbrowser.open(report.resolve().as_uri())
    return 0


def serve_ui(loaded: LoadedConfig) -> int:
    """Keep Prefect and MLflow open on what the runs left, until Ctrl-C."""
    serve_until_interrupted(server_settings(loaded), say=lambda text: Console(highlight=False).print(text))
    return 0


def server_settings(loaded: LoadedConfig) -> ServerSettings:
    """The servers that this configuration asks for; the environment's own come first."""
    tracking = loaded.config.tracking
    return ServerSettings(
        state_dir=Path("outputs") / ".servers",
        prefect_api_url=tracking.prefect_api_url or os.environ.get("PREFECT_API_URL") or None,
        mlflow_uri=tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI") or None,
        prefect_port=tracking.prefect_port,
        mlflow_port=tracking.mlflow_port,
    )


def _use(servers: Servers) -> None:
    """Point this process at the servers, before Prefect is imported; its own console lines give way to the display."""
    os.environ["PREFECT_API_URL"] = servers.prefect_api_url
    os.environ["MLFLOW_TRACKING_URI"] = servers.mlflow_uri
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")


def _where_to_look(loaded: LoadedConfig, display: TerminalDisplay) -> None:
    output_dir = loaded.config.output_dir
    report = output_dir / "report.html"
    if report.is_file():
        display.say(f"\nReport     {report.resolve()}")
    display.say(
        f"Artifacts  {(output_dir / 'artifacts').resolve()}\nLook again in Prefect and MLflow: rlhf ui -c {loaded.path}"
    )
