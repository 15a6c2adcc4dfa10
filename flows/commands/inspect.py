"""What `rlhf check`, `report`, `ui` and `reap` do, once the configuration stands. Heavy imports happen here, late."""

import sys
import webbrowser

from rich.console import Console

from flows.commands.run import server_settings
from flows.servers.local import serve_until_interrupted
from tasks.config.errors import InvalidConfigError
from tasks.config.loading import LoadedConfig
from tasks.plan.run_plan import draft_plan

_EXIT_FAILED = 1


def show_check(loaded: LoadedConfig) -> int:
    """Print the system check. Returns 0 where nothing hinders a run.

    Raises:
        InvalidConfigError: after the table, where the configuration cannot work with what is there.
    """
    from tasks.check_system import failures, run_checks, table

    plan = draft_plan(loaded.config, config_path=loaded.path)
    findings = run_checks(loaded.config, plan)
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
    console = Console(highlight=False, soft_wrap=True)
    experiment = loaded.config.tracking.experiment
    serve_until_interrupted(server_settings(loaded), say=console.print, experiment=experiment)
    return 0


def reap_containers(*, dry_run: bool) -> int:
    """Stop and remove containers of dead runs, one line each. Returns 0 unless no daemon could be asked."""
    from tasks.pipeline.reap import NoDaemonError, reap

    num_found = 0

    def say(line: str) -> None:
        nonlocal num_found
        num_found += 1
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    try:
        reap(say, dry_run=dry_run)
    except NoDaemonError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_FAILED
    if not num_found:
        sys.stdout.write("No container of any run is here.\n")
    return 0
