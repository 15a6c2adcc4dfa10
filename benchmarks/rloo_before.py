"""Time our RLOO step of this checkout beside that of an older one: python -m benchmarks.rloo_before --before FOLDER

Both take turns on the same draws of prompts with given completions, the same policy and the same reward model, as in
`benchmarks.rloo_speed`, each time in its own process of its own checkout. The libraries are the same.

    --before FOLDER  a checkout of the older commit, such as `git worktree add FOLDER 7250f31`
    --write          write the output into its part of benchmarks/rloo_speed.md
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.provenance import PROJECT, commit
from benchmarks.rloo_inputs import ADAPTERS, draw_folder, prepare
from benchmarks.rloo_ways import LENGTHS, OURS
from benchmarks.speed_ratios import alternate, ratio
from benchmarks.speed_table import circumstances, write_part

_PAGE = PROJECT / "benchmarks" / "rloo_speed.md"
_BEFORE = "before"
# The older program reads prompts and models from one folder.
_SHARED = ("policy", "reward")


def main() -> int:
    """Measure, print and perhaps write; 1 if the step is slower than before on every draw."""
    arguments, measured = _arguments(), commit()
    with tempfile.TemporaryDirectory(prefix="rloo-before-") as name:
        folder = Path(name)
        prepare(folder, data=None, count=arguments.prompts, seeds=arguments.seeds)
        folders = {seed: draw_folder(folder, seed) for seed in arguments.seeds}
        for draw in folders.values():
            for shared in _SHARED:
                (draw / shared).symlink_to(folder / shared)
        found = alternate(
            [_BEFORE, OURS], folders=folders, rounds=arguments.rounds, measure=lambda way, at: _run(way, at, arguments)
        )
    faster = ratio(found, _BEFORE, ours=OURS)
    seconds = {way: sum(run["seconds"] for run in runs) / arguments.rounds for way, runs in found.items()}
    older = subprocess.run(
        ["git", "describe", "--always"],  # noqa: S607 - as the developer's own
        cwd=arguments.before, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    text = "\n".join(
        (
            f"{arguments.prompts} prompts a draw with 4 completions each (random letters; {LENGTHS}), adapters of rank "
            f"{ADAPTERS.r}, seeds {' '.join(map(str, arguments.seeds))}; "
            f"{circumstances(arguments.rounds, draws=len(arguments.seeds))}",
            "",
            "| step | seconds, all draws | this one is faster | by the clock |",
            "| --- | ---: | ---: | ---: |",
            f"| commit {older} | {seconds[_BEFORE]:.1f} | {faster} | {faster.clock_shown} |",
            f"| this commit | {seconds[OURS]:.1f} |  |  |",
        )
    )
    print(text)
    if arguments.write:
        write_part(
            _PAGE, text, module="benchmarks.rloo_before", title="RLOO step", heading="Beside the older step",
            measured=measured,
        )  # fmt: skip
    return 0 if max(faster.of_draws) >= 1 else 1


def _run(way: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    place = arguments.before if way == _BEFORE else PROJECT
    command = [sys.executable, "-m", "benchmarks.rloo_speed", "--measure", OURS, "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(command, cwd=place, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the older commit")
    parser.add_argument("--prompts", type=int, default=4, help="of each draw, 2 a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="a draw of data for each")
    parser.add_argument("--rounds", type=int, default=3, help="of each draw")
    parser.add_argument("--write", action="store_true", help="write the output into rloo_speed.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
