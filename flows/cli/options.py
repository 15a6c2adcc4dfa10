"""What the subcommands of `rlhf` have in common on the command line."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from flows.cli.argument_parser import ArgumentParser

DEMO_CONFIG = "configs/runs/demo.yaml"

Commands: TypeAlias = "argparse._SubParsersAction[ArgumentParser]"


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """The options that name a run and change it."""
    parser.add_argument(
        "-c", "--config", type=Path, required=True, metavar="FILE", help=f"the run (example: {DEMO_CONFIG})"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="change one key, the value in YAML; may be given several times (example: --set train_policy.beta=0.1)",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="GPU profile instead of the file's: a name in configs/gpu_profiles or a YAML file (example: 4x48gb)",
    )


def add_debug_option(parser: argparse.ArgumentParser) -> None:
    """`--debug`, for the commands that run a pipeline or look at one."""
    parser.add_argument(
        "--debug",
        action="store_true",
        help="the run on few rows with two steps of each training, in a folder of its own (NAME-debug), to see that "
        "it works; its figures mean nothing",
    )


def add_command(
    commands: Commands,
    name: str,
    command: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    """A subcommand with its summary and example; `command` returns the exit code."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        example=example,
    )
    parser.set_defaults(command=command)
    return parser
