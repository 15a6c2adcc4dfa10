"""`rlhf cache ls | verify | gc`: what the artifact store holds, whether it is whole, and what can go."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from containers.human_text import size
from tasks.store import find_garbage, list_artifacts, remove, verify_artifacts

_EXIT_DAMAGED = 1
_SHOWN_KEY = 12


def list_store(store_dir: Path, console: Console) -> int:
    """A table: stage, key, made when, size, wanted by which runs."""
    artifacts = list_artifacts(store_dir)
    if not artifacts:
        console.print(f"{store_dir.resolve()} holds no artifact.", markup=False)
        return 0
    table = Table("stage", "key", "made", "size", "wanted by", box=None, pad_edge=False)
    for item in artifacts:
        made = item.created_at[:16].replace("T", " ") or "unreadable"
        wanted = ", ".join(dict.fromkeys(item.used_by)) or "nobody"
        table.add_row(item.stage.value, item.key[:_SHOWN_KEY], made, size(item.size_bytes), wanted)
    console.print(table)
    total = sum(item.size_bytes for item in artifacts)
    console.print(f"{len(artifacts)} artifacts, {size(total)}, in {store_dir.resolve()}", markup=False)
    return 0


def verify_store(store_dir: Path, console: Console) -> int:
    """Compare every file with its manifest. Returns 1 where an artifact is damaged."""
    damaged = checked = 0
    for item, problem in verify_artifacts(store_dir):
        checked += 1
        damaged += bool(problem)
        console.print(f"{'DAMAGED' if problem else 'whole  '}  {item.stage} {item.key[:_SHOWN_KEY]}", markup=False)
        if problem:
            console.print(f"         {problem}", markup=False)
    console.print(f"{checked} artifacts compared with their manifests, {damaged} damaged.")
    if damaged:
        console.print("A run that needs a damaged one sets it aside and makes it again.")
    return _EXIT_DAMAGED if damaged else 0


def collect_garbage(store_dir: Path, console: Console, *, older_than_days: float, delete: bool) -> int:
    """List what can go, and delete it where `delete` says so."""
    found = find_garbage(store_dir, older_than_days=older_than_days)
    freed = 0
    for item in found:
        left = remove(item, store_dir) if delete else ""
        freed += 0 if left else item.size_bytes
        text = f"{size(item.size_bytes):>10}  {item.kind}, {item.stage} {item.key[:_SHOWN_KEY]}: {item.why}"
        console.print(f"{text}; LEFT: {left}" if left else text, markup=False)
    if not found:
        console.print(f"Nothing can go (what no run wants is kept for {older_than_days:g} days).")
    elif delete:
        console.print(f"{size(freed)} freed.")
    else:
        console.print(f"{size(freed)} would be freed. Nothing was deleted: add --yes to do it.")
    return 0
