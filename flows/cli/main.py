"""The `rlhf` command. Nothing heavy is imported at the top: `--help` answers at once, a subcommand loads its own."""

import argparse
import os
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from containers.contracts.names import CONTAINER_STAGES, DEMO_DATA_FOLDER, StageName
from containers.host.environment_block import hide_secrets
from flows.cli import approve, certificates, champion, configured, doctor, keys, serve
from flows.cli.argument_parser import ArgumentParser
from flows.cli.options import DEMO_CONFIG, Commands, add_command, add_config_options, add_debug_option
from flows.servers.settings import switch_statistics_off
from flows.signals import EndedBySignal, exit_code_after, how_it_ended, signals_end_the_block

EXIT_BAD_CONFIG = 2
_EXIT_LIMIT_S = 10.0

_EPILOG = """examples:
  rlhf demo-data --folder outputs/demo/data
  rlhf run -c configs/runs/demo.yaml
  rlhf plan -c configs/runs/helpsteer3-qwen3-8b.yaml --profile 4x48gb

exit codes: 0 done, 1 failed or a gate stayed closed, 2 the configuration or command line is wrong,
  3 a person is to decide at a gate (`rlhf approve`), 130 interrupted, 143 stopped by SIGTERM
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the process's exit code.

    Args:
        argv: None: those of this process, which then also ends within seconds of this function.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser()
    parsed = parser.parse_args(arguments)
    if "command" not in parsed:
        parser.print_help()
        return EXIT_BAD_CONFIG
    hide_secrets()
    parsed.command_line = shlex.join(["rlhf", *arguments])
    switch_statistics_off()
    exit_code = _run_command(parsed)
    if argv is None:
        # Prefect delivers at exit what it still holds, and tries a server that has gone for more than two minutes.
        reaper = threading.Timer(_EXIT_LIMIT_S, os._exit, (exit_code,))
        reaper.daemon = True
        reaper.start()
    return exit_code


def _run_command(parsed: argparse.Namespace) -> int:
    command: Callable[[argparse.Namespace], int] = parsed.command
    try:
        with signals_end_the_block():
            exit_code = command(parsed)
        sys.stdout.flush()
        return exit_code
    except (KeyboardInterrupt, EndedBySignal) as ending:
        with suppress(OSError):  # after SIGHUP the terminal may be gone
            print(f"{how_it_ended(ending)}.", file=sys.stderr)
        return exit_code_after(ending)
    except BrokenPipeError:
        # The reader of a pipe has left; Python would complain once more while it flushes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from flows.servers.process import ServerError
        from tasks.config.errors import ConfigError

        if not isinstance(error, (ConfigError, ServerError)):
            raise
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG if isinstance(error, ConfigError) else 1


def build_parser() -> argparse.ArgumentParser:
    """The command line with every option and its help."""
    parser = ArgumentParser(
        prog="rlhf",
        description="From preferences to a judged reward model, a judged policy and an honest report.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rlhf-flows {metadata.version('rlhf-flows')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (command, summary, example) in _configured_commands().items():
        subcommand = add_command(commands, name, command, summary=summary, example=f"rlhf {name} {example}")
        add_config_options(subcommand)
        add_debug_option(subcommand)
        if name == "plan":
            subcommand.add_argument(
                "--model-config",
                type=Path,
                metavar="FILE",
                help="config.json of the base model, where its size is not known (example: models/mine/config.json)",
            )
        if name == "run":
            _add_stage_range(subcommand)
    keys.add_to(commands)
    doctor.add_to(commands)
    serve.add_to(commands)
    approve.add_to(commands)
    champion.add_to(commands)
    certificates.add_to(commands)
    _add_demo_data(commands)
    _add_reap(commands)
    _add_cache(commands)
    return parser


def _configured_commands() -> dict[str, tuple[Callable[[argparse.Namespace], int], str, str]]:
    """The commands that read a run: what they do, in words, and an example."""
    demo, production = f"-c {DEMO_CONFIG}", "-c configs/runs/helpsteer3-qwen3-8b.yaml"
    return {
        "run": (configured.run, "run the pipeline; finished stages are reused", f"{demo} --set run.seed=7"),
        "check": (
            configured.check,
            "check GPUs, Docker, memory, disk, servers, model and data; start nothing",
            production,
        ),
        "plan": (
            configured.plan,
            "show stages, steps, estimated memory, time and disk; needs no GPU and no network",
            f"{production} --profile 1x48gb",
        ),
        "report": (configured.report, "say where the last report lies, and open it", demo),
        "ui": (configured.ui, "keep Prefect and MLflow open on what the runs left", demo),
    }


def _add_stage_range(parser: argparse.ArgumentParser) -> None:
    stages = ", ".join(stage for stage in CONTAINER_STAGES if stage is not StageName.WRITE_REPORT)
    parser.add_argument(
        "--until",
        metavar="STAGE",
        help=f"the last stage before the report, instead of all (example: --until evaluate_reward_model); of {stages}",
    )
    parser.add_argument(
        "--again-from",
        metavar="STAGE",
        help="make this stage and those after it anew, although their artifacts are there; what was made before is "
        "kept aside until `rlhf cache gc` (example: --again-from train_policy)",
    )


def _add_demo_data(commands: Commands) -> None:
    parser = add_command(
        commands,
        "demo-data",
        configured.demo_data,
        summary="write the synthetic preferences of the demo",
        example="rlhf demo-data --folder outputs/demo/data --seed 0",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(DEMO_DATA_FOLDER),
        metavar="FOLDER",
        help="where the three files go (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="NUMBER", help="which data (default: %(default)s)")
    parser.add_argument(
        "--flip-labels",
        action="store_true",
        help="write every label the wrong way round, to see that the run notices (labelled_pairs stay right)",
    )


def _add_reap(commands: Commands) -> None:
    parser = add_command(
        commands,
        "reap",
        configured.reap,
        summary="stop and remove the containers of runs that died; each run does so for itself when it starts",
        example="rlhf reap --dry-run",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _add_cache(commands: Commands) -> None:
    parser = add_command(
        commands,
        "cache",
        configured.cache,
        summary="list what stages made, compare it with its manifests, delete what no run wants",
        example="rlhf cache gc --older-than 14",
    )
    parser.add_argument(
        "action", choices=("ls", "verify", "gc"), help="list; compare every file with its manifest; say what can go"
    )
    parser.add_argument(
        "--store",
        type=Path,
        default=Path("outputs/store"),
        metavar="FOLDER",
        help="run.store_dir of your runs (default: %(default)s)",
    )
    parser.add_argument(
        "--older-than",
        type=float,
        default=7.0,
        metavar="DAYS",
        help="gc: what no run wants is kept this long (default: %(default)g)",
    )
    parser.add_argument("--yes", action="store_true", help="gc: delete it, instead of only saying so")


if __name__ == "__main__":
    sys.exit(main())
