"""What each subcommand of `rlhf` calls. Each imports its own, late, so that `--help` and mistakes are told at once."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.config.loading import LoadedConfig


def run(parsed: argparse.Namespace) -> int:
    """`rlhf run`."""
    # The configuration is read before the heavy imports, so that its mistakes are told at once.
    if parsed.until is not None:
        parsed.overrides.append(f"run.until={parsed.until}")
    command = parsed.command_line
    if parsed.again_from is not None:
        parsed.overrides.append(f"run.again_from={parsed.again_from}")
        command = _without_option(command, "--again-from")  # what goes on from here must not begin again
    loaded = _load(parsed)
    if parsed.debug:
        from tasks.config.debug import debug_notice

        print(debug_notice(loaded.config))
    from flows.commands.run import run_pipeline

    return run_pipeline(loaded, command=command)


def _without_option(command: str, option: str) -> str:
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        if word == option:
            next(words, None)
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return shlex.join(kept)


def check(parsed: argparse.Namespace) -> int:
    """`rlhf check`."""
    loaded = _load(parsed)
    from flows.commands.inspect import show_check

    return show_check(loaded)


def plan(parsed: argparse.Namespace) -> int:
    """`rlhf plan`."""
    loaded = _load(parsed)
    from flows.upgrades import upgrade_lines
    from tasks.pipeline.lookup import look_up_stages
    from tasks.plan.inputs.cpu_speed import measured_cpu_speed
    from tasks.plan.run_plan import plan_run
    from tasks.plan.text import render_plan

    found = look_up_stages(loaded.config)
    planned = plan_run(
        loaded,
        cached=found.texts.__getitem__,
        artifacts=found.artifacts,
        model_config=parsed.model_config,
        cpu=measured_cpu_speed(loaded.config.gpu_profile),
    )
    upgrades = upgrade_lines(loaded.config, planned)
    print("".join(f"UPGRADE: {line}\n" for line in upgrades) + render_plan(planned))
    return 0


def report(parsed: argparse.Namespace) -> int:
    """`rlhf report`."""
    loaded = _load(parsed)
    from flows.commands.inspect import open_report

    return open_report(loaded)


def ui(parsed: argparse.Namespace) -> int:
    """`rlhf ui`."""
    loaded = _load(parsed)
    from flows.commands.inspect import serve_ui

    return serve_ui(loaded)


def reap(parsed: argparse.Namespace) -> int:
    """`rlhf reap`."""
    from flows.commands.inspect import reap_containers

    return reap_containers(dry_run=parsed.dry_run)


def cache(parsed: argparse.Namespace) -> int:
    """`rlhf cache ls | verify | gc`."""
    from rich.console import Console

    from flows.commands.cache import collect_garbage, list_store, verify_store

    console = Console(highlight=False)
    store_dir: Path = parsed.store
    if parsed.action == "ls":
        return list_store(store_dir, console)
    if parsed.action == "verify":
        return verify_store(store_dir, console)
    return collect_garbage(store_dir, console, older_than_days=parsed.older_than, delete=parsed.yes)


def demo_data(parsed: argparse.Namespace) -> int:
    """`rlhf demo-data`."""
    from flows.demo.rows import write_demo_data
    from tasks.config.errors import ConfigError

    try:
        written = write_demo_data(parsed.folder, seed=parsed.seed, flip_labels=parsed.flip_labels)
    except OSError as error:
        raise ConfigError(
            f"--folder {parsed.folder}: {error.filename or parsed.folder} cannot be written "
            f"({error.strerror or error}). Name a folder that can be made and written."
        ) from error
    for path in (written.train, written.validation, written.labelled_pairs):
        print(path)
    return 0


def _load(parsed: argparse.Namespace) -> "LoadedConfig":
    from tasks.config.errors import InvalidConfigError, Mistake
    from tasks.config.loading import load_run_config

    try:
        loaded = load_run_config(parsed.config, overrides=parsed.overrides, profile=parsed.profile)
    except InvalidConfigError as error:  # mistakes name the option that was typed
        told = [Mistake(item.key, item.text.replace("--set run.until=", "--until ")) for item in error.mistakes]
        told = [Mistake(item.key, item.text.replace("--set run.again_from=", "--again-from ")) for item in told]
        raise InvalidConfigError(error.source, told) from error
    if not parsed.debug:
        return loaded
    from tasks.config.debug import debug_settings

    overrides = [*parsed.overrides, *debug_settings(loaded.config)]
    return load_run_config(parsed.config, overrides=overrides, profile=parsed.profile)
