"""`rlhf keys` on the command line. Imports its own, late."""

import argparse
from pathlib import Path

from flows.cli.options import Commands, add_command


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    parser = add_command(
        commands,
        "keys",
        keys,
        summary="list every key of a run's configuration: type, default, what it does",
        example="rlhf keys train_policy",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "word",
        nargs="?",
        metavar="SECTION",
        help="only this section, or the keys that have this in their name (example: gates.policy, or learning_rate)",
    )
    what.add_argument(
        "--write", type=Path, metavar="FILE", help="write all of it as a page (example: --write docs/configuration.md)"
    )


def keys(parsed: argparse.Namespace) -> int:
    """`rlhf keys`."""
    from flows.commands.keys import keys_page, keys_text
    from tasks.config.errors import ConfigError

    if parsed.write is None:
        print(keys_text(parsed.word))
        return 0
    try:
        parsed.write.write_text(keys_page(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{parsed.write} cannot be written: {error.strerror}. Name a file in a folder that is there."
        ) from error
    print(parsed.write)
    return 0
