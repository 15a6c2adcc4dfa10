"""The command line of `rlhf serve`; its work is in `flows.serving.session`."""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from cronsim import CronSim, CronSimError

from flows.cli.options import Command
from flows.servers.local import ServerSettings
from flows.servers.process import LOOPBACK
from flows.servers.settings import STATE_DIR
from flows.serving.session import ServeSettings, serve
from tasks.config.errors import ConfigError


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--configs",
        type=Path,
        default=Path("configs/runs"),
        metavar="FOLDER",
        help="the run configurations that the forms offer (default: %(default)s)",
    )
    parser.add_argument(
        "--allow-folder",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder outside of this one that runs from a form may read and write; may be repeated",
    )
    parser.add_argument(
        "--limit",
        type=_at_least_one,
        default=4,
        metavar="RUNS",
        help="runs at a time; more wait (default: %(default)s)",
    )
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        metavar="ADDRESS",
        help="interface of servers started here; beyond loopback they demand logins (default: %(default)s)",
    )
    parser.add_argument(
        "--no-login",
        action="store_true",
        help="a Prefect started here demands no login: every user of this machine can then run code as you; by "
        f"default it demands one that `rlhf` makes and keeps in {STATE_DIR}/prefect/login",
    )
    parser.add_argument(
        "--retrain",
        metavar="NAME",
        help="with --cron: the run configuration that is retrained on a schedule (example: demo)",
    )
    parser.add_argument(
        "--cron",
        type=cron,
        metavar="SCHEDULE",
        help="with --retrain: when, as minute, hour, day of the month, month, day of the week, in UTC (example: "
        "'0 6 * * 1', Mondays at six)",
    )
    for name, title, port, variable in (
        ("prefect", "Prefect", 4200, "PREFECT_SERVER_DATABASE_CONNECTION_URL"),
        ("mlflow", "MLflow", 5000, "MLFLOW_BACKEND_STORE_URI"),
    ):
        parser.add_argument(
            f"--{name}-port",
            type=int,
            metavar="PORT",
            help=f"port of a {title} started here; 0: any free one (default: {port}, or a free one if that is taken)",
        )
        parser.add_argument(
            f"--{name}-database",
            metavar="URL",
            help=f"database of a {title} started here, for example PostgreSQL; with a password in it, set {variable} "
            f"instead (default: SQLite in {STATE_DIR})",
        )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` found, wanted a whole number, at least 1")
    return int(text)


def cron(text: str) -> str:
    """Return a cron schedule of five fields after a check.

    Raises:
        ArgumentTypeError: it is no schedule, or never comes due; the message names the field.
    """
    try:
        CronSim(text, datetime.now(UTC))
    except CronSimError as error:
        raise argparse.ArgumentTypeError(
            f"`{text}` is no schedule: {str(error).lower()}. Wanted: minute (0 to 59), hour (0 to 23), day of the "
            "month, month, day of the week"
        ) from error
    return text


def _run(parsed: argparse.Namespace) -> int:
    if bool(parsed.retrain) != bool(parsed.cron):
        given, missing = ("--cron", "--retrain") if parsed.cron else ("--retrain", "--cron")
        raise ConfigError(
            f"{given} was given without {missing}: a schedule needs both what to retrain and when. Example: "
            "rlhf serve --retrain demo --cron '0 6 * * 1'"
        )
    servers = ServerSettings(
        state_dir=STATE_DIR,
        prefect_api_url=os.environ.get("PREFECT_API_URL") or None,
        mlflow_uri=os.environ.get("MLFLOW_TRACKING_URI") or None,
        prefect_port=parsed.prefect_port,
        mlflow_port=parsed.mlflow_port,
        host=parsed.host,
        prefect_login=not parsed.no_login,
        prefect_database=parsed.prefect_database,
        mlflow_database=parsed.mlflow_database,
    )
    return serve(
        ServeSettings(
            configs=parsed.configs,
            allowed_folders=tuple(parsed.allow_folder),
            limit=parsed.limit,
            servers=servers,
            retrain=parsed.retrain or "",
            cron=parsed.cron or "",
        )
    )


SERVE = Command(_add_options, _run)
