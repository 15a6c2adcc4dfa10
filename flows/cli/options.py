"""What the commands of `rlhf` share: options, and loading a run's configuration."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows.cli.registry import DEMO_CONFIG
from tasks.config.debug import debug_settings
from tasks.config.errors import InvalidConfigError, Mistake
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.store.format import require_known_store


@dataclass(frozen=True)
class Command:
    """A command of `rlhf`.

    Attributes:
        add_options: adds its options and arguments to its parser.
        run: runs it and returns the exit code.
    """

    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_config_options(parser: argparse.ArgumentParser, *, what: str = f"the run (example: {DEMO_CONFIG})") -> None:
    """Add the options that name a run, or a comparison of runs, and change it."""
    parser.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help=what)
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


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the same, `--debug` and `--debug-full`, for the commands that run a pipeline or look at one."""
    add_config_options(parser)
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument(
        "--debug",
        action="store_const",
        const="small",
        help="run on few rows with two steps of each training, in its own folder (NAME-debug), to see that it works; "
        "its figures mean nothing",
    )
    shapes.add_argument(
        "--debug-full",
        action="store_const",
        const="full",
        dest="debug",
        help="the same (NAME-debug-full) with the run's own batches, lengths and tokens at a time, to see memory and "
        "time of a step on this machine",
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a reward model from anywhere."""
    parser.add_argument(
        "-m",
        "--model",
        required=True,
        metavar="MODEL",
        help="its folder, org/name@revision on the hub, a LoRA adapter in either place, or the output folder of a run",
    )
    parser.add_argument(
        "--base",
        metavar="MODEL",
        help="base model of an adapter, instead of the one that the adapter names: a folder, or org/name@revision",
    )


def load_run(parsed: argparse.Namespace) -> LoadedConfig:
    """Load the run that the options of `add_run_options` name.

    Raises:
        ConfigError: it has mistakes; a key that came from an option is named by that option.
    """
    try:
        loaded = load_run_config(parsed.config, overrides=parsed.overrides, profile=parsed.profile)
    except InvalidConfigError as error:
        told = [Mistake(item.key, _by_option(item.text)) for item in error.mistakes]
        raise InvalidConfigError(error.source, told) from error
    if not parsed.debug:
        return loaded
    overrides = [*parsed.overrides, *debug_settings(loaded.config, shapes=parsed.debug)]
    return load_run_config(parsed.config, overrides=overrides, profile=parsed.profile)


def _by_option(text: str) -> str:
    for option in ("until", "again-from"):
        text = text.replace(f"--set run.{option.replace('-', '_')}=", f"--{option} ")
    return text


def load_run_with_store(parsed: argparse.Namespace) -> LoadedConfig:
    """Load the run that the options of `add_config_options` name.

    Raises:
        ConfigError: it has mistakes, or a newer version of this package wrote its store.
    """
    loaded = load_run_config(parsed.config, overrides=parsed.overrides, profile=parsed.profile)
    require_known_store(loaded.config.store_dir)
    return loaded
