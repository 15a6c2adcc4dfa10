"""`rlhf champion`, `promote`, `rollback`: show the champions of a run, or move the champion by hand."""

import argparse
import os
import re
from collections.abc import Callable
from functools import partial

from rich.console import Console

from flows.cli.options import Command, add_config_options, load_run_with_store
from flows.servers.process import LOOPBACK, health_problem
from flows.servers.record import read_record
from flows.servers.settings import STATE_DIR
from tasks.champions.book import ChampionBook, ChampionError, promoted_by_hand, rolled_back
from tasks.champions.record import ChampionRecord, Kind
from tasks.champions.registry import Registry
from tasks.champions.retraining import champion_book
from tasks.champions.text import standing_lines
from tasks.config.errors import ConfigError
from tasks.config.loading import LoadedConfig
from tasks.config.logins import login_problem

_EXIT_FAILED = 1
_MAX_WORD_CHARACTERS = 200
_MAX_REASON_CHARACTERS = 2000
_KINDS: dict[str, Kind] = {"reward-model": "reward_model", "policy": "policy"}


def _add_promote_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--version", type=int, required=True, metavar="NUMBER", help="which; `rlhf champion` lists them (example: 2)"
    )
    _add_rollback_options(parser)


def _add_rollback_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    models = tuple(_KINDS)
    parser.add_argument(
        "--model", choices=models, default=models[0], help="which champion to change (default: %(default)s)"
    )
    parser.add_argument("--by", required=True, metavar="NAME", help="who decides (example: --by Ada)")
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="why (example: --reason 'wins in our own red-teaming')"
    )


def _show(parsed: argparse.Namespace) -> int:
    """Print champions, other versions and history; update MLflow if it answers."""
    loaded, console = load_run_with_store(parsed), _console()
    for kind in _kinds(loaded):
        book = champion_book(loaded.config, kind)
        try:
            record = book.read()
        except ChampionError as error:
            console.print(str(error), markup=False)
            return _EXIT_FAILED
        for line in standing_lines(record):
            console.print(line, markup=False)
        if record.champion is not None:
            console.print(f"\nModel      {book.artifact(record.champion.model).path}", markup=False)
            console.print(f"File       {book.path}", markup=False)
            _tell(loaded, book, record, console)
    return 0


def _promote(parsed: argparse.Namespace) -> int:
    """Make that version champion. If that is impossible, change nothing, print why and return 1."""
    return _move(parsed, partial(promoted_by_hand, version=parsed.version, by=parsed.by, reason=parsed.reason))


def _roll_back(parsed: argparse.Namespace) -> int:
    """Bring back the champion before the present one. If that is impossible, print why and return 1."""
    return _move(parsed, partial(rolled_back, by=parsed.by, reason=parsed.reason))


CHAMPION = Command(add_config_options, _show)
PROMOTE = Command(_add_promote_options, _promote)
ROLLBACK = Command(_add_rollback_options, _roll_back)


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _move(parsed: argparse.Namespace, change: Callable[[ChampionRecord], ChampionRecord]) -> int:
    loaded, console = load_run_with_store(parsed), _console()
    book = champion_book(loaded.config, _KINDS[parsed.model])

    def change_to_a_whole_model(record: ChampionRecord) -> ChampionRecord:
        moved = change(record)
        if moved.champion is not None:
            book.require_whole(moved.champion, whole_up_to_bytes=loaded.config.verify_whole_up_to_bytes)
        return moved

    problem = _unusable(parsed.by, parsed.reason)
    if not problem:
        try:
            record = book.update(change_to_a_whole_model)
        except ChampionError as error:
            problem = str(error)
    if problem:
        console.print(problem, markup=False)
        return _EXIT_FAILED
    last = record.decisions[-1]
    console.print(
        f"{record.name}: version {last.champion_after} is champion"
        + (f", in place of version {last.champion_before}" if last.champion_before else "")
        + f". Noted: by {last.by}, because: {last.text}",
        markup=False,
    )
    _tell(loaded, book, record, console)
    return 0


def _unusable(by: str, reason: str) -> str:
    """What is wrong with --by or --reason; empty: nothing."""
    for option, text, limit in (("--by", by, _MAX_WORD_CHARACTERS), ("--reason", reason, _MAX_REASON_CHARACTERS)):
        if not text.strip():
            return f"{option} is empty. The history says who changed the champion, and why: give both."
        if len(text) > limit:
            return f"{option} has {len(text):,} characters; at most {limit:,} are kept. Shorten it."
    return ""


def _kinds(loaded: LoadedConfig) -> tuple[Kind, ...]:
    """The reward model, and the policy if it has champions or the run retrains it."""
    has_policies = champion_book(loaded.config, "policy").path.exists()
    if has_policies or loaded.config.retrain.models == "reward_model_and_policy":
        return "reward_model", "policy"
    return ("reward_model",)


def _tell(loaded: LoadedConfig, book: ChampionBook, record: ChampionRecord, console: Console) -> None:
    """Update MLflow if a server is known and answers; the champion's file is what counts."""
    uri = _mlflow_uri(loaded)
    if not uri:
        console.print(
            "MLflow is not running here. It will show this after the next retraining, promotion, rollback or "
            "`rlhf champion` while it runs.",
            markup=False,
        )
        return
    problem = Registry(uri, experiment=loaded.config.tracking.experiment).reconcile(book, record)
    shown = re.sub(r"//[^/]*@", "//", uri)
    console.print(problem or f"MLflow     {shown}/#/models/{record.name}", markup=False)


def _mlflow_uri(loaded: LoadedConfig) -> str:
    """Address of the configured server, else the environment's, else this folder's; empty: none answers."""
    given = loaded.config.tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if given:
        if problem := login_problem("mlflow", given, os.environ):
            raise ConfigError(f"tracking.mlflow_uri: {problem}")
        is_web = given.lower().startswith("http")
        return "" if is_web and health_problem(f"{given.rstrip('/')}/health") else given
    for server in read_record(STATE_DIR).servers:
        uri = f"http://{LOOPBACK}:{server.port}"
        if server.name == "mlflow" and server.lives and health_problem(f"{uri}/health") is None:
            return uri
    return ""
