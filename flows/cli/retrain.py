"""`rlhf retrain`: run the retraining flow from a terminal, with servers, like a schedule does.

Nothing here imports Prefect before its address is known.
"""

import argparse
import time
from contextlib import suppress
from pathlib import Path

from flows.cli.options import Command, add_config_options
from flows.cli.run import exit_code_of, require_folders, server_settings, something_waits, use_servers
from flows.servers.local import Servers, local_servers, login_hint
from flows.signals import EndedBySignal, exit_code_after, how_it_ended
from flows.terminal import TerminalDisplay
from tasks.champions.book import ChampionError
from tasks.champions.changes import nothing_new_text, why_retrain
from tasks.champions.retraining import Retraining, load_retraining
from tasks.config.errors import ConfigError
from tasks.display import install_display
from tasks.mlflow_sync.start import install_mlflow_start
from tasks.plan.run_plan import plan_run
from tasks.sources.errors import SourceError

_EXIT_FAILED = 1


def _retrain(parsed: argparse.Namespace) -> int:
    """Retrain the run. Returns 0 after a decision or if there was nothing to decide, 1 after a failure.

    Raises:
        ConfigError: the configuration has mistakes; nothing was started.
    """
    path, settings, profile = parsed.config, parsed.overrides, parsed.profile
    display = TerminalDisplay()
    install_display(display)
    started = time.monotonic()
    try:
        retraining = load_retraining(_as_path(path), settings, profile=profile)
        require_folders(retraining.loaded)
        if _is_decided(retraining) and not something_waits(retraining.config.output_dir):
            display.say(nothing_new_text(retraining))
            display.say(f"{time.monotonic() - started:.1f} s in all.")
            return 0
        for warning in plan_run(retraining.loaded).warnings:
            display.say(f"Warning: {warning}")
    except (SourceError, ChampionError) as error:
        display.say(f"The retraining does not start; nothing was spent.\n  {error}")
        return _EXIT_FAILED
    try:
        settings_of_servers = server_settings(retraining.loaded)
        with local_servers(settings_of_servers, say=display.say, meanwhile=_use_and_import) as servers:
            install_mlflow_start(servers.mlflow_start)
            hint = login_hint(settings_of_servers.state_dir)
            display.say(f"Prefect  {servers.prefect_ui_url}{hint}\nMLflow   {servers.mlflow_uri}")
            exit_code = _run_flow(path, servers, display, settings=settings, profile=profile)
    except (KeyboardInterrupt, EndedBySignal) as ending:
        with suppress(OSError):  # after SIGHUP the terminal may be gone
            display.close()
            display.say(
                f"{how_it_ended(ending)}. The champion is unchanged. Nothing that was finished is lost; the same "
                f"command goes on from the last good step: {retraining.command}"
            )
        return exit_code_after(ending)
    display.say(f"{time.monotonic() - started:.0f} s in all. Champion and history: rlhf champion -c {path}")
    return exit_code


def _is_decided(retraining: Retraining) -> bool:
    """Whether nothing changed since the last decision.

    Raises:
        SourceError, ChampionError: the retraining cannot start.
    """
    try:
        return not why_retrain(retraining)
    except (SourceError, ChampionError):
        raise
    except Exception:  # for example a missing stage image: the run meets it too, and reports it
        return False


def _use_and_import(servers: Servers) -> None:
    """Import for some seconds, while the servers start."""
    use_servers(servers)
    import flows.retrain  # noqa: F401


def _run_flow(
    path: Path, servers: Servers, display: TerminalDisplay, *, settings: list[str], profile: str | None
) -> int:
    from flows.retrain import rlhf_retrain
    from flows.run_flow import how_it_ends

    changes = [*settings, *([f"gpu_profile={profile}"] if profile else [])]
    end = how_it_ends(lambda: rlhf_retrain(_as_path(path), changes))
    display.close()
    if not end.prefect_knows:
        display.say(f"Prefect at {servers.prefect_ui_url} was not told how this ended; the next run there tells it.")
    return exit_code_of(end.error, display)


def _as_path(path: Path) -> str:
    """The path as text; `load_retraining` would read one without a YAML ending as a name."""
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path} is no YAML file. Name one, for example -c configs/runs/demo.yaml.")
    return str(path)


RETRAIN = Command(add_config_options, _retrain)
