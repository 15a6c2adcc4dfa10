"""`rlhf run`: run the pipeline, with its servers.

Nothing here imports Prefect before `use_servers`: it reads its settings at import, and would start its own server.
"""

import argparse
import logging
import os
import shlex
import time
from contextlib import suppress
from pathlib import Path

from rich.markup import escape

from containers.contracts.records import PipelineRecord
from flows.cli.options import Command, add_run_options, load_run
from flows.run_flow import how_it_ends, import_flow
from flows.servers.local import Servers, ServerSettings, local_servers, login_hint
from flows.servers.settings import STATE_DIR
from flows.signals import EndedBySignal, exit_code_after, how_it_ended
from flows.terminal import TerminalDisplay, printable
from tasks.checks.sources import named_sources
from tasks.config.debug import debug_notice
from tasks.config.errors import InvalidConfigError, Mistake
from tasks.config.loading import LoadedConfig
from tasks.config.run import RunConfig
from tasks.display import install_display
from tasks.mlflow_sync.start import install_mlflow_start
from tasks.mlflow_sync.state_file import PENDING_FOLDER
from tasks.pipeline.stages import STAGES
from tasks.pipeline.standing_report import last_record, standing_report
from tasks.plan.inputs.gpu_speed import missing_selftest
from tasks.plan.run_plan import plan_run
from tasks.prefect_sync.ledger import LEDGER_FOLDER
from tasks.run.lock import RunFolderHeldError, refuse_held_folder
from tasks.sources.errors import SourceError
from tasks.store.format import NewerStoreError, require_known_store
from tasks.store.lock import LockError
from tasks.store.selftests import kept_selftests

_EXIT_FAILED = 1
_EXIT_WAITS = 3
_EXIT_CANCELLED = 130


def run_pipeline(loaded: LoadedConfig, *, command: str) -> int:
    """Run the pipeline. Returns 0 only if every stage ran and every gate opened, 3 if a gate waits for a person."""
    # Refuse what cannot work before any server starts.
    plan = plan_run(loaded)
    require_folders(loaded)
    display = TerminalDisplay()
    for warning in plan.warnings:
        display.say(f"Warning: {warning}")
    install_display(display)
    started = time.monotonic()
    standing = None if loaded.config.run.again_from else standing_report(loaded)
    if standing and not something_waits(loaded.config.output_dir):
        return _nothing_to_do(standing, loaded, display, started=started)
    if problem := why_not_started(loaded.config):
        display.say(problem)
        return _EXIT_FAILED
    if hint := missing_selftest(plan.profile, kept_selftests(loaded.config.store_dir)):
        display.say(hint)
    before = last_record(loaded.config.output_dir)
    try:
        settings = server_settings(loaded)
        with local_servers(settings, say=display.say, meanwhile=_use_and_import) as servers:
            install_mlflow_start(servers.mlflow_start)
            hint = login_hint(settings.state_dir)
            display.say(f"Prefect  {servers.prefect_ui_url}{hint}\nMLflow   {servers.mlflow_uri}")
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
    _where_to_look(loaded, display, before=before)
    return exit_code


def something_waits(output_dir: Path) -> bool:
    """Whether an earlier run left records that MLflow or Prefect does not have yet."""
    return any(any((output_dir / folder).glob("*.json")) for folder in (PENDING_FOLDER, LEDGER_FOLDER))


def require_folders(loaded: LoadedConfig) -> None:
    """Refuse folders that cannot be written, both in one error."""
    named = (("run.output_dir", loaded.config.output_dir), ("run.store_dir", loaded.config.store_dir))
    mistakes = [Mistake(key, text) for key, folder in named if (text := _why_not_writable(folder))]
    if mistakes:
        raise InvalidConfigError(str(loaded.path), mistakes)


def _why_not_writable(folder: Path) -> str:
    place = folder.absolute()
    while not os.path.lexists(place):  # also False if this user may not look there
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return ""
    what = "cannot be written" if place.is_dir() else "is a file"
    return f"{place} {what}. Name a folder that can be written, or leave the key out for one below outputs/."


def why_not_started(config: RunConfig) -> str:
    """What is in the way of a run, before any server starts; empty: nothing."""
    return _held(config) or _unusable_sources(config)


def _held(config: RunConfig) -> str:
    """Which run uses this run's folder now, or that a newer version wrote its store; empty: neither."""
    try:
        require_known_store(config.store_dir)
        refuse_held_folder(config.output_dir)
    except (NewerStoreError, RunFolderHeldError, LockError) as error:
        return f"The run does not start.\n  {error}"
    return ""


def _unusable_sources(config: RunConfig) -> str:
    """What is wrong with local data and models, before any server starts; empty: nothing.

    The system check covers data and models on the hub.
    """
    problems = []
    for one in named_sources(config, ask_hub=False):
        try:
            if not one.is_on_hub:
                one.probe(None)
        except SourceError as error:
            problems.append(f"  {error}")
    return "\n".join(("The run does not start; nothing was spent.", *problems)) if problems else ""


def _nothing_to_do(standing: PipelineRecord, loaded: LoadedConfig, display: TerminalDisplay, *, started: float) -> int:
    """Say that every artifact and the report are still valid; start no server and no program."""
    for record in standing.stages:
        display.stage_ended(record)
    display.say(
        f"Nothing to do: every stage has its artifact, compared with its manifest file by file, and the report of run "
        f"{standing.run_id} shows them.\n{time.monotonic() - started:.1f} s in all."
    )
    _show_report(standing, loaded, display)
    return 0


def _run_flow(loaded: LoadedConfig, servers: Servers, *, command: str, display: TerminalDisplay) -> int:
    """Run the flow and return the exit code.

    Raises:
        KeyboardInterrupt, EndedBySignal: a user or a signal stopped it.
    """
    from flows.rlhf import rlhf

    tracking = loaded.config.tracking.model_copy(update={"mlflow_uri": servers.mlflow_uri})
    config = loaded.config.model_copy(update={"tracking": tracking})
    ended = how_it_ends(lambda: rlhf(config, command=command, config_yaml=loaded.yaml_text))
    display.close()
    if not ended.prefect_knows:
        display.say(
            f"Prefect at {servers.prefect_ui_url} was not told how this run ended; the next `rlhf run` with that "
            "server tells it."
        )
    return exit_code_of(ended.error, display)


def exit_code_of(error: BaseException | None, display: TerminalDisplay) -> int:
    """Print what ended the run, and return the exit code.

    Raises:
        KeyboardInterrupt, EndedBySignal: a user or a signal stopped it.
    """
    from tasks.config.gates import PersonAwaitedError
    from tasks.prefect_sync.cancellation import RunCancelledError

    if error is None:
        return 0
    if isinstance(error, PersonAwaitedError):
        display.say(f"\n{error}")
        return _EXIT_WAITS
    if isinstance(error, RunCancelledError):
        display.say(f"{error} Nothing that was finished is lost; the same command goes on from the last good step.")
        return _EXIT_CANCELLED
    _raise_ending_behind(error)
    if not isinstance(error, Exception):
        raise error
    display.console.print(f"\n[red]{escape(type(error).__name__)}[/]: {escape(printable(str(error)))}")
    return _EXIT_FAILED


def _raise_ending_behind(error: BaseException) -> None:
    """Raise the interrupt or signal behind an error: Prefect may have failed while it told its server of it."""
    from prefect.exceptions import TerminationSignal

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (KeyboardInterrupt, EndedBySignal)):
            raise seen
        if isinstance(seen, TerminationSignal):
            raise EndedBySignal(seen.signal)
        seen = seen.__cause__ or seen.__context__


def server_settings(loaded: LoadedConfig) -> ServerSettings:
    """Settings of the servers: from this configuration, else from the environment."""
    tracking = loaded.config.tracking
    return ServerSettings(
        state_dir=STATE_DIR,
        prefect_api_url=tracking.prefect_api_url or os.environ.get("PREFECT_API_URL") or None,
        mlflow_uri=tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI") or None,
        prefect_port=tracking.prefect_port,
        mlflow_port=tracking.mlflow_port,
        prefect_login=tracking.prefect_login,
    )


def use_servers(servers: Servers) -> None:
    """Point this process at the servers, before Prefect is imported; silence Prefect's own console lines."""
    logging.raiseExceptions = False  # else Prefect's log handler writes into the display when its server is away
    os.environ["PREFECT_API_URL"] = servers.prefect_api_url
    os.environ["MLFLOW_TRACKING_URI"] = servers.mlflow_uri
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")


def _use_and_import(servers: Servers) -> None:
    """Import for two seconds, while the servers start."""
    use_servers(servers)
    import_flow()


def _where_to_look(loaded: LoadedConfig, display: TerminalDisplay, *, before: PipelineRecord | None) -> None:
    """Print where this run's report and artifacts are."""
    record = last_record(loaded.config.output_dir)
    if record is not None and (before is None or record.run_id != before.run_id):
        _show_report(record, loaded, display)
    else:
        display.say("This run wrote no report.")


def _show_report(record: PipelineRecord, loaded: LoadedConfig, display: TerminalDisplay) -> None:
    folder = loaded.config.output_dir.resolve()
    for gate in record.gates:
        rules = "; ".join(f"{rule.name}: {rule.found}, wanted {rule.wanted}" for rule in gate.rules)
        display.say(f"{gate.name.replace('_', ' ').capitalize()} gate {gate.outcome_text}. {rules}")
    report = folder / "reports" / record.run_id / "report.html"
    if report.is_file():
        display.say(f"\nReport     {folder / 'report.html'}")
    if (folder / "artifacts").is_dir():
        display.say(f"Artifacts  {folder / 'artifacts'}")
    display.say(f"Look again in Prefect and MLflow: rlhf ui -c {loaded.path}")


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    stages = ", ".join(stage.name for stage in STAGES)
    parser.add_argument(
        "--until",
        metavar="STAGE",
        help=f"last stage before the report, instead of all (example: --until evaluate_reward_model); one of {stages}",
    )
    parser.add_argument(
        "--again-from",
        metavar="STAGE",
        help="run this stage and those after it again, although they have artifacts; the old artifacts are kept "
        "aside until `rlhf cache gc` (example: --again-from train_policy)",
    )


def _run(parsed: argparse.Namespace) -> int:
    command = parsed.command_line
    if parsed.until is not None:
        parsed.overrides.append(f"run.until={parsed.until}")
    if parsed.again_from is not None:
        parsed.overrides.append(f"run.again_from={parsed.again_from}")
        command = _without_option(command, "--again-from")  # the command to go on must not begin again
    loaded = load_run(parsed)
    if parsed.debug:
        print(debug_notice(loaded.config))
    return run_pipeline(loaded, command=command)


def _without_option(command: str, option: str) -> str:
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        if word == option:
            next(words, None)
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return shlex.join(kept)


RUN = Command(_add_options, _run)
