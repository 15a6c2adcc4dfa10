"""The `rlhf` command. Only the called command's module is imported, so that `--help` answers at once."""

import argparse
import os
import shlex
import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib import metadata
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from containers.host.environment_block import hide_secrets
from flows.cli.argument_parser import ArgumentParser
from flows.cli.registry import COMMANDS
from flows.servers.settings import switch_statistics_off
from flows.signals import EndedBySignal, exit_code_after, how_it_ended, signals_end_the_block

if TYPE_CHECKING:
    from flows.cli.options import Command

EXIT_BAD_CONFIG = 2
_EXIT_LIMIT_S = 10.0

_EPILOG = """examples:
  rlhf demo-data --folder outputs/demo/data
  rlhf run -c configs/runs/demo.yaml
  rlhf plan -c configs/runs/helpsteer3-qwen3-8b.yaml --profile 4x48gb

exit codes: 0 done, 1 failed or a gate stayed closed, 2 the configuration or command line is wrong,
  3 a person must decide at a gate (`rlhf approve`) or judge (`rlhf judge`), 130 interrupted, 143 stopped by SIGTERM
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code.

    Args:
        argv: None: those of this process, which then also ends within 10 s after this function.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    hide_secrets()
    switch_statistics_off()
    exit_code = _run_command(arguments)
    if argv is None:
        # Prefect delivers its remaining data at exit, and tries a server that is gone for more than two minutes.
        reaper = threading.Timer(_EXIT_LIMIT_S, os._exit, (exit_code,))
        reaper.daemon = True
        reaper.start()
    return exit_code


def _run_command(arguments: list[str]) -> int:
    try:
        with signals_end_the_block():
            exit_code = _parse_and_run(arguments)
        sys.stdout.flush()
        return exit_code
    except (KeyboardInterrupt, EndedBySignal) as ending:
        with suppress(OSError):  # after SIGHUP the terminal may be gone
            print(f"{how_it_ended(ending)}.", file=sys.stderr)
        return exit_code_after(ending)
    except BrokenPipeError:
        # The reader of the pipe is gone; Python would complain again when it flushes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from flows.servers.process import ServerError
        from tasks.config.errors import ConfigError

        if not isinstance(error, (ConfigError, ServerError)):
            raise
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG if isinstance(error, ConfigError) else 1


def _parse_and_run(arguments: list[str]) -> int:
    parser = build_parser(arguments)
    parsed = parser.parse_args(arguments)
    if "run_command" not in parsed:
        parser.print_help()
        return EXIT_BAD_CONFIG
    parsed.command_line = shlex.join(["rlhf", *arguments])
    return int(parsed.run_command(parsed))


def build_parser(called: Collection[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        called: commands among these words are imported and get their options; the others have a name and help.
    """
    parser = ArgumentParser(
        prog="rlhf",
        description="From preferences to a judged reward model, a judged policy and an honest report.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rlhf-flows {metadata.version('rlhf-flows')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, listed in COMMANDS.items():
        example = f"rlhf {name} {listed.example}"
        subparser = commands.add_parser(
            name,
            help=listed.summary,
            description=f"{listed.summary[0].upper()}{listed.summary[1:]}.",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            example=example,
        )
        if name in called:
            command: Command = resolve_name(f"flows.cli.{listed.place}")
            command.add_options(subparser)
            subparser.set_defaults(run_command=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
