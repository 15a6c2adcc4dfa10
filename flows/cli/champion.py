"""`rlhf retrain, champion, promote and rollback` on the command line. Imports its own, late."""

import argparse
from typing import TYPE_CHECKING

from flows.cli.options import DEMO_CONFIG, Commands, add_command, add_config_options

if TYPE_CHECKING:
    from tasks.champions.record import Kind
    from tasks.config.loading import LoadedConfig

_MODELS = ("reward-model", "policy")


def add_to(commands: Commands) -> None:
    """Add the subcommands."""
    retrain = add_command(
        commands,
        "retrain",
        _retrain,
        summary="train a challenger on the newest data; it becomes champion only where it is better beyond chance",
        example=f"rlhf retrain -c {DEMO_CONFIG}",
    )
    add_config_options(retrain)
    champion = add_command(
        commands,
        "champion",
        _champion,
        summary="show the champion of a run, its challengers, and every decision with its figures",
        example=f"rlhf champion -c {DEMO_CONFIG}",
    )
    add_config_options(champion)
    promote = add_command(
        commands,
        "promote",
        _promote,
        summary="make a version champion by hand; who and why stands in its history",
        example=f"rlhf promote -c {DEMO_CONFIG} --version 2 --by Ada --reason 'wins in our own red-teaming'",
    )
    promote.add_argument(
        "--version", type=int, required=True, metavar="NUMBER", help="which; `rlhf champion` lists them (example: 2)"
    )
    rollback = add_command(
        commands,
        "rollback",
        _rollback,
        summary="bring the champion before the present one back; who and why stands in its history",
        example=f"rlhf rollback -c {DEMO_CONFIG} --by Ada --reason 'rewards flattery'",
    )
    for parser in (promote, rollback):
        add_config_options(parser)
        parser.add_argument(
            "--model", choices=_MODELS, default=_MODELS[0], help="whose champion is moved (default: %(default)s)"
        )
        parser.add_argument("--by", required=True, metavar="NAME", help="who decides (example: --by Ada)")
        parser.add_argument(
            "--reason", required=True, metavar="TEXT", help="why (example: --reason 'wins in our own red-teaming')"
        )


def _retrain(parsed: argparse.Namespace) -> int:
    from flows.commands.retrain import retrain

    return retrain(parsed.config, settings=parsed.overrides, profile=parsed.profile)


def _champion(parsed: argparse.Namespace) -> int:
    loaded = _load(parsed)
    from rich.console import Console

    from flows.commands.champion import show

    return show(loaded, Console(highlight=False, soft_wrap=True))


def _promote(parsed: argparse.Namespace) -> int:
    loaded = _load(parsed)
    from rich.console import Console

    from flows.commands.champion import promote

    console = Console(highlight=False, soft_wrap=True)
    return promote(loaded, console, kind=_kind(parsed), version=parsed.version, by=parsed.by, reason=parsed.reason)


def _rollback(parsed: argparse.Namespace) -> int:
    loaded = _load(parsed)
    from rich.console import Console

    from flows.commands.champion import roll_back

    console = Console(highlight=False, soft_wrap=True)
    return roll_back(loaded, console, kind=_kind(parsed), by=parsed.by, reason=parsed.reason)


def _kind(parsed: argparse.Namespace) -> "Kind":
    return "policy" if parsed.model == "policy" else "reward_model"


def _load(parsed: argparse.Namespace) -> "LoadedConfig":
    from tasks.config.loading import load_run_config
    from tasks.store.format import demand_known_store

    loaded = load_run_config(parsed.config, overrides=parsed.overrides, profile=parsed.profile)
    demand_known_store(loaded.config.store_dir)
    return loaded
