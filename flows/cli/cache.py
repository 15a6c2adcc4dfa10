"""`rlhf cache ls | verify | gc`: list the artifact store, verify it, delete what no run wants.

Adapters that were put onto their base models are beside the hub's downloads; `ls` and `gc` cover them too.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from containers.document.model import Table, heads
from containers.formatting import size
from flows.cli.options import Command
from flows.terminal import print_table
from tasks.config.errors import ConfigError
from tasks.sources.adapter_folders import (
    AdapterFolder,
    adapters_root,
    find_unused,
    list_adapter_folders,
    remove_adapter_folder,
)
from tasks.store.contents import find_garbage, linked_folders, list_artifacts, remove, verify_artifacts
from tasks.store.format import require_known_store

_EXIT_DAMAGED = 1
_SHOWN_KEY = 12
_SHOWN_RUNS = 5
_DAY_S = 86_400


def list_store(store_dir: Path, console: Console) -> int:
    """Print stage, key, time, size and wanting runs of each artifact, and the adapters on their base models."""
    _demand_store(store_dir)
    artifacts = list_artifacts(store_dir)
    if not artifacts:
        console.print(f"{store_dir.resolve()} holds no artifact.", markup=False)
    else:
        rows = [("stage", "key", "made", "size", "wanted by")]
        for item in artifacts:
            made = item.created_at[:16].replace("T", " ") or "unreadable"
            wanted = _wanted_by(item.used_by)
            rows.append((item.stage.value, item.key[:_SHOWN_KEY], made, size(item.size_bytes), wanted))
        # Rich measures and wraps each cell: half a minute for ten thousand artifacts.
        console.file.writelines(f"{line}\n" for line in _aligned(rows))
        total = sum(item.size_bytes for item in artifacts)
        console.print(f"{len(artifacts)} artifacts, {size(total)}, in {store_dir.resolve()}", markup=False)
    _list_adapters(list_adapter_folders(store_dir), console)
    return 0


def _demand_store(store_dir: Path) -> None:
    """Refuse a misspelt folder, which is no empty store, and a store of a newer version.

    Raises:
        ConfigError: there is no such folder, or a newer version of this package wrote it.
    """
    if not store_dir.is_dir():
        what = "is a file" if store_dir.exists() else "does not exist"
        raise ConfigError(
            f"{store_dir.absolute()} {what}. Name the run.store_dir of your runs with --store; it is outputs/store "
            "if a run names none."
        )
    require_known_store(store_dir)


def _wanted_by(runs: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    names = list(dict.fromkeys(runs))
    more = len(names) - _SHOWN_RUNS
    return ", ".join((*names[:_SHOWN_RUNS], *([f"and {more:,} more"] if more > 0 else []))) or "none"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A line for each row, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _list_adapters(found: tuple[AdapterFolder, ...], console: Console) -> None:
    if not found:
        return
    rows = tuple(
        (
            item.path.name,
            datetime.fromtimestamp(item.last_used, UTC).strftime("%Y-%m-%d %H:%M"),
            size(item.own_bytes),
            size(item.shared_bytes),
            ", ".join((*(["a running process"] if item.is_held else []), *item.used_by)) or "none",
        )
        for item in found
    )
    console.print()
    print_table(console, Table(heads("adapter on its base model", "last used", "size", "shared", "wanted by"), rows))
    total, shared = sum(item.own_bytes for item in found), sum(item.shared_bytes for item in found)
    console.print(
        f"Adapters on their base models: {len(found)}, {size(total)}, in {adapters_root()}. {size(shared)} more are "
        "links to files elsewhere, and take no space.",
        markup=False,
    )


def verify_store(store_dir: Path, console: Console) -> int:
    """Compare every file with its manifest. Returns 1 if an artifact is damaged."""
    _demand_store(store_dir)
    damaged = checked = 0
    for stage, key, problem in verify_artifacts(store_dir):
        checked += 1
        damaged += bool(problem)
        # Rich's layout of a line takes longer than the check of a small artifact.
        console.file.write(f"{'DAMAGED' if problem else 'whole  '}  {stage} {key[:_SHOWN_KEY]}\n")
        if problem:
            console.file.write(f"         {problem}\n")
    console.print(f"{checked} artifacts compared with their manifests, {damaged} damaged.")
    if damaged:
        console.print("A run that needs a damaged artifact sets it aside and makes it again.")
    return _EXIT_DAMAGED if damaged else 0


def collect_garbage(store_dir: Path, console: Console, *, older_than_days: float, delete: bool) -> int:
    """List what no run wants, and delete it if `delete` is set."""
    _demand_store(store_dir)
    freed, count = 0, 0
    for text, num_bytes, remove_it in _can_go(store_dir, older_than_days=older_than_days):
        left = remove_it() if delete else ""
        count += 1
        freed += 0 if left else num_bytes
        line = f"{size(num_bytes):>10}  {text}"
        console.print(f"{line}; LEFT: {left}" if left else line, markup=False)
    for place in linked_folders(store_dir):
        console.print(
            f"Left: {place} is a link to {place.resolve()}. Nothing is deleted through a link; name the store that it "
            "belongs to with --store.",
            markup=False,
        )
    if not count:
        console.print(f"Nothing can go (what no run wants is kept for {older_than_days:g} days).")
    elif delete:
        console.print(f"{size(freed)} freed.")
    else:
        console.print(f"{size(freed)} would be freed. Nothing was deleted: add --yes to do it.")
    return 0


def _can_go(store_dir: Path, *, older_than_days: float) -> Iterator[tuple[str, int, Callable[[], str]]]:
    """Yield what can go and why, the bytes that it frees, and a function that deletes it or returns why it did not."""
    for item in find_garbage(store_dir, older_than_days=older_than_days):
        text = f"{item.kind}, {item.stage} {item.key[:_SHOWN_KEY]}: {item.why}"
        yield text, item.size_bytes, partial(remove, item, store_dir)
    for folder in find_unused(store_dir, older_than_days=older_than_days):
        days = (time.time() - folder.last_used) / _DAY_S
        why = f"last used {days:.0f} days ago, and no run of this store wants it; a run that names it makes it again"
        if folder.is_leftover:
            why = "a process died while it made or removed this"
        yield (
            f"adapter on its base model {folder.path.name}: {why}",
            folder.own_bytes,
            partial(remove_adapter_folder, folder),
        )


def _add_options(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--yes", action="store_true", help="gc: delete it, instead of only listing it")


def _run(parsed: argparse.Namespace) -> int:
    console = Console(highlight=False)
    if parsed.action == "ls":
        return list_store(parsed.store, console)
    if parsed.action == "verify":
        return verify_store(parsed.store, console)
    return collect_garbage(parsed.store, console, older_than_days=parsed.older_than, delete=parsed.yes)


CACHE = Command(_add_options, _run)
