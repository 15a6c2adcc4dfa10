"""`rlhf champion, promote and rollback` on the command line. Imports its own, late."""

from flows.cli_parsers import Commands


def add_to(commands: Commands) -> None:
    """Add the subcommands."""
