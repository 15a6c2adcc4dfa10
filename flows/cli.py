"""The `rlhf` command. Nothing heavy is imported at the top: `--help` answers at once, a subcommand loads its own."""

import argparse
import os
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flows.ending_signals import EndedBySignal, exit_code_after, how_it_ended, signals_end_the_block

if TYPE_CHECKING:
    from flows.config_loading import LoadedConfig

EXIT_BAD_CONFIG = 2
_EXIT_LIMIT_S = 10.0

_DEMO_CONFIG = "configs/runs/demo.yaml"
_EPILOG = """examples:
  rlhf demo-data --folder outputs/demo/data
  rlhf run -c configs/runs/demo.yaml
  rlhf plan -c configs/runs/helpsteer3-qwen3-8b.yaml --profile 4x48gb

exit codes: 0 done, 1 failed or a gate stayed closed, 2 the configuration or command line is wrong,
  130 interrupted, 143 stopped by SIGTERM
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the process's exit code.

    Args:
        argv: None: those of this process, which then also ends within seconds of this function.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    parsed = build_parser().parse_args(arguments)
    parsed.command_line = shlex.join(["rlhf", *arguments])
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
        from flows.config_errors import ConfigError
        from flows.server_process import ServerError

        if not isinstance(error, (ConfigError, ServerError)):
            raise
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG if isinstance(error, ConfigError) else 1


def build_parser() -> argparse.ArgumentParser:
    """The command line with every option and its help."""
    parser = argparse.ArgumentParser(
        prog="rlhf",
        description="From preferences to a judged reward model, a judged policy and an honest report.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (command, summary, example) in _configured_commands().items():
        configured = _add_command(commands, name, command, summary=summary, example=f"rlhf {name} {example}")
        _add_config_options(configured)
        if name == "plan":
            configured.add_argument(
                "--model-config",
                type=Path,
                metavar="FILE",
                help="config.json of the base model, where its size is not known (example: models/mine/config.json)",
            )
    _add_demo_data(commands)
    return parser


def _configured_commands() -> dict[str, tuple[Callable[[argparse.Namespace], int], str, str]]:
    """The commands that read a run: what they do, in words, and an example."""
    demo, production = f"-c {_DEMO_CONFIG}", "-c configs/runs/helpsteer3-qwen3-8b.yaml"
    return {
        "run": (_run, "run the pipeline; finished stages are reused", f"{demo} --set run.seed=7"),
        "check": (_check, "check GPUs, Docker, memory, disk, servers, model and data; start nothing", production),
        "plan": (
            _plan,
            "show stages, steps, estimated memory, time and disk; needs no GPU and no network",
            f"{production} --profile 1x48gb",
        ),
        "report": (_report, "say where the last report lies, and open it", demo),
        "ui": (_ui, "keep Prefect and MLflow open on what the runs left", demo),
    }


def _add_config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", type=Path, required=True, metavar="FILE", help=f"the run (example: {_DEMO_CONFIG})"
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


def _add_demo_data(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _add_command(
        commands,
        "demo-data",
        _demo_data,
        summary="write the synthetic preferences of the demo",
        example="rlhf demo-data --folder outputs/demo/data --seed 0",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("outputs/demo/data"),
        metavar="FOLDER",
        help="where the three files go (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="NUMBER", help="which data (default: %(default)s)")
    parser.add_argument(
        "--flip-labels",
        action="store_true",
        help="write every label the wrong way round, to see that the run notices (labelled_pairs stay right)",
    )


def _add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    command: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=command)
    return parser


def _load(parsed: argparse.Namespace) -> "LoadedConfig":
    from flows.config_loading import load_run_config

    return load_run_config(parsed.config, overrides=parsed.overrides, profile=parsed.profile)


def _run(parsed: argparse.Namespace) -> int:
    # The configuration is read before the heavy imports, so that its mistakes are told at once.
    loaded = _load(parsed)
    from flows.run_command import run_pipeline

    return run_pipeline(loaded, command=parsed.command_line)


def _check(parsed: argparse.Namespace) -> int:
    loaded = _load(parsed)
    from flows.run_command import check

    return check(loaded)


def _plan(parsed: argparse.Namespace) -> int:
    loaded = _load(parsed)
    from flows.cached_stages import cached_stages
    from flows.plan import plan_run
    from flows.plan_text import render_plan

    cached = cached_stages(loaded.config)
    print(render_plan(plan_run(loaded, cached=lambda stage: cached[stage], model_config=parsed.model_config)))
    return 0


def _report(parsed: argparse.Namespace) -> int:
    loaded = _load(parsed)
    from flows.run_command import open_report

    return open_report(loaded)


def _ui(parsed: argparse.Namespace) -> int:
    loaded = _load(parsed)
    from flows.run_command import serve_ui

    return serve_ui(loaded)


def _demo_data(parsed: argparse.Namespace) -> int:
    from flows.demo_data import write_demo_data

    written = write_demo_data(parsed.folder, seed=parsed.seed, flip_labels=parsed.flip_labels)
    for path in (written.train, written.validation, written.labelled_pairs):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
