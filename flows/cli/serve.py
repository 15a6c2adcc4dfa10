"""The command lines of `rlhf serve` and `rlhf pod-template`; their work is in `flows.serving`."""

import argparse
import json
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from cronsim import CronSim, CronSimError

from containers.contracts.registries import AUTO, capabilities
from flows.cli.options import Command, add_config_options
from flows.servers.local import ServerSettings
from flows.servers.process import LOOPBACK
from flows.servers.settings import STATE_DIR
from flows.serving.pod_template import job_template
from flows.serving.session import ServeSettings, serve
from tasks.config.errors import ConfigError
from tasks.config.loading import load_run_config

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


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


def _add_pod_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    parser.add_argument(
        "--image", required=True, help="image with orchestrator and stages, made by containers/kubernetes/build.sh"
    )
    parser.add_argument(
        "--claim", required=True, help="PersistentVolumeClaim with configurations, data and store (ReadWriteMany)"
    )
    parser.add_argument("--namespace", default="default", help="namespace of the pods (default: %(default)s)")
    parser.add_argument(
        "--memory-gib",
        type=float,
        help="limit of the pod in GiB, /dev/shm included (default: host_memory_gib of the profile, else none)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="variable of the flow run, as MLFLOW_TRACKING_URI; may be repeated; no secrets",
    )


def _print_template(parsed: argparse.Namespace) -> int:
    config = load_run_config(parsed.config, overrides=parsed.overrides, profile=parsed.profile).config
    profile, kind = config.gpu_profile, config.runtime.kind
    memory = parsed.memory_gib if parsed.memory_gib is not None else profile.host_memory_gib
    mistakes = []
    if profile.chosen_because:
        mistakes.append("gpu_profile: `auto` looks at this machine. Name the profile of the pods' nodes (--profile).")
    if kind != AUTO and capabilities(kind).runs_image:
        mistakes.append(
            f"runtime.kind: {kind} starts containers, which a pod cannot. Use `--set runtime.kind=process`."
        )
    for option, name in (("--claim", parsed.claim), ("--namespace", parsed.namespace)):
        if not _LABEL.fullmatch(name):
            mistakes.append(f"{option}: `{name}` is no name in Kubernetes: small letters, digits and `-`, at most 63.")
    if isinstance(memory, int | float) and memory <= profile.shm_size_gib:
        mistakes.append(
            f"--memory-gib: {memory:g} GiB hold nothing beside the {profile.shm_size_gib:g} GiB of /dev/shm, which "
            "counts as memory. Give more, or lower shm_size_gib of the profile."
        )
    mistakes += [f"--env: `{one}` found, wanted NAME=VALUE." for one in parsed.env if not _SETTING.fullmatch(one)]
    if mistakes:
        raise ConfigError("The pods would not work:\n" + "\n".join(f"  {mistake}" for mistake in mistakes))
    template = job_template(
        profile,
        image=parsed.image,
        claim=parsed.claim,
        namespace=parsed.namespace,
        memory_gib=parsed.memory_gib,
        environment=dict(one.split("=", 1) for one in parsed.env),
    )
    sys.stdout.write(json.dumps(template, indent=2) + "\n")
    return 0


SERVE = Command(_add_options, _run)
POD_TEMPLATE = Command(_add_pod_options, _print_template)
