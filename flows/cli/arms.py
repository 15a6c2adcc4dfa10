"""`rlhf arms`: run the arms of a comparison with servers, and compare their policies.

Nothing here imports Prefect before its address is known.
"""

import argparse
import shlex
import time
from contextlib import suppress

from flows.cli.options import Command, add_config_options
from flows.cli.run import exit_code_of, require_folders, server_settings, use_servers, why_not_started
from flows.servers.local import Servers, local_servers, login_hint
from flows.signals import EndedBySignal, exit_code_after, how_it_ended
from flows.terminal import TerminalDisplay, print_table
from tasks.arms.load import Comparison, load_comparison
from tasks.arms.plan import plan_arms
from tasks.display import install_display
from tasks.mlflow_sync.start import install_mlflow_start

_EXIT_FAILED = 1


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser, what="the comparison (example: configs/arms/sums.yaml); --set changes all of its arms")
    parser.add_argument("--plan", action="store_true", help="only show what each arm will take, and what they share")


def _arms(parsed: argparse.Namespace) -> int:
    """Run the arms. Returns 0 only if every arm came to its end and all were compared, 3 if one waits for a person.

    Raises:
        ConfigError: the comparison has mistakes, or the arms do not fit the budget; nothing was started.
    """
    comparison = load_comparison(parsed.config, overrides=parsed.overrides, profile=parsed.profile)
    display = TerminalDisplay()
    plan = plan_arms(comparison)
    print_table(display.console, plan.table())
    for warning in plan.warnings:
        display.say(f"Warning: {warning}")
    plan.require_budget()
    if parsed.plan:
        return 0
    for arm in comparison.arms:
        require_folders(arm.loaded)
    if problems := dict.fromkeys(text for arm in comparison.arms if (text := why_not_started(arm.config))):
        display.say("\n".join(problems))
        return _EXIT_FAILED
    install_display(display)
    return _with_servers(comparison, parsed, display)


def _with_servers(comparison: Comparison, parsed: argparse.Namespace, display: TerminalDisplay) -> int:
    started, command = time.monotonic(), parsed.command_line
    try:
        settings = server_settings(comparison.arms[0].loaded)
        with local_servers(settings, say=display.say, meanwhile=_use_and_import) as servers:
            install_mlflow_start(servers.mlflow_start)
            hint = login_hint(settings.state_dir)
            display.say(f"Prefect  {servers.prefect_ui_url}{hint}\nMLflow   {servers.mlflow_uri}")
            exit_code = _run_flow(parsed, servers, display)
    except (KeyboardInterrupt, EndedBySignal) as ending:
        with suppress(OSError):  # after SIGHUP the terminal may be gone
            display.close()
            display.say(
                f"{how_it_ended(ending)}. Nothing that was finished is lost; the same command goes on from the last "
                f"good step: {command}"
            )
        return exit_code_after(ending)
    display.say(f"{time.monotonic() - started:.0f} s in all.")
    report = comparison.file.folder.resolve() / "report.html"
    if report.is_file():
        display.say(f"\nComparison  {report}")
    again = shlex.join(["rlhf", "ui", "-c", str(comparison.file.start_from)])
    display.say(f"Look again in Prefect and MLflow: {again}")
    return exit_code


def _use_and_import(servers: Servers) -> None:
    """Import for some seconds, while the servers start."""
    use_servers(servers)
    import flows.arms  # noqa: F401


def _run_flow(parsed: argparse.Namespace, servers: Servers, display: TerminalDisplay) -> int:
    from flows.arms import rlhf_arms
    from flows.run_flow import how_it_ends

    end = how_it_ends(
        lambda: rlhf_arms(
            str(parsed.config), list(parsed.overrides), profile=parsed.profile or "", command=parsed.command_line
        )
    )
    display.close()
    if not end.prefect_knows:
        display.say(f"Prefect at {servers.prefect_ui_url} was not told how this ended; the next run there tells it.")
    return exit_code_of(end.error, display)


ARMS = Command(_add_options, _arms)
