"""Everything once on a GPU, in under ten minutes: python -m benchmarks.on_gpu --write

A model of the shape of Qwen3-0.6B with random weights goes through all stages by their own programs; then policies are
trained again, killed and resumed, and by other algorithms; packed rows are compared with padded ones; and steps and
generation are timed beside TRL and transformers. Each part has its own process and time limit. What is known is kept at
once: a part that breaks or is too slow costs nothing else.

    --out FOLDER        results.jsonl, the parts' logs, and the page; outputs/on-gpu unless given
    --write             also write the page to docs/proofs/gpu.md
    --minutes N         for all parts together; 8 unless given
    --only PART …       these parts alone; `stages` comes before `policies`, `preferences` and `exactness`
    --vocabulary FILE   a real vocabulary (ranks of tiktoken) instead of one made from the texts
    --cpu-rehearsal     the same with a tiny model on the processor, to test the program
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.page import page_text, short_table
from benchmarks.gpu.parts import PARTS, Work, run_part
from benchmarks.provenance import PROJECT, commit

_MODULE = "benchmarks.on_gpu"
_RESULTS = "results.jsonl"
_LOGS = "parts.log"
_PAGE = "gpu.md"
_PROOF = PROJECT / "docs" / "proofs" / _PAGE
_LEAST_S = 15.0
# A rehearsal has two cores and no GPU.
_SLOWER = 5.0


def main() -> int:
    """Run the parts and print a table; return 1 if one broke, 2 without a GPU."""
    given = _arguments()
    out = given.out.resolve()
    if given.part:
        report = partial(_report, out / _RESULTS, given.part)
        return run_part(
            given.part, Work(Path(given.folder), report, given.cpu_rehearsal, given.vocabulary, given.limit_s)
        )
    if not given.cpu_rehearsal and shutil.which("nvidia-smi") is None:
        print(
            "No GPU: nvidia-smi is not on this machine's path. Run it on a machine with an NVIDIA GPU and its driver, "
            "or test the program itself with --cpu-rehearsal.",
            file=sys.stderr,
        )
        return 2
    measured = given.commit or commit()
    out.mkdir(parents=True, exist_ok=True)
    for stale in (out / _RESULTS, out / _LOGS):
        stale.unlink(missing_ok=True)
    deadline = time.monotonic() + 60 * given.minutes * (_SLOWER if given.cpu_rehearsal else 1)
    with tempfile.TemporaryDirectory(prefix="on-gpu-", ignore_cleanup_errors=True) as folder:
        codes = {name: _part_process(name, given, Path(folder), deadline=deadline) for name in given.only}
    lines = read_results(out / _RESULTS)
    (out / _PAGE).write_text(page_text(lines, codes, command=_command(), measured=measured), encoding="utf-8")
    if given.write:
        shutil.copyfile(out / _PAGE, _PROOF)
    print(short_table(lines, codes), flush=True)
    return int(any(code != "ended" for code in codes.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=PROJECT / "outputs" / "on-gpu", help="folder of the results")
    parser.add_argument("--write", action="store_true", help=f"also write the page to {_PROOF.relative_to(PROJECT)}")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all parts together; 8 unless given")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="these parts alone")
    parser.add_argument(
        "--vocabulary", type=Path, help="ranks of tiktoken, instead of a vocabulary made from the texts"
    )
    parser.add_argument("--commit", default="", help="of these sources, where git cannot tell")
    parser.add_argument("--cpu-rehearsal", action="store_true", help="tiny, on the processor")
    for name in ("--part", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--limit-s", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def _command() -> str:
    shown = [
        argument for argument in sys.argv[1:] if argument.startswith("--") and argument[2:] not in ("out", "commit")
    ]
    return " ".join(["python -m", _MODULE, *shown])


def _part_process(name: str, given: argparse.Namespace, folder: Path, *, deadline: float) -> str:
    """Run a part in its own session, and kill all of that at its limit; return how it ended."""
    own = PARTS[name][1] * (_SLOWER if given.cpu_rehearsal else 1)
    limit = min(own, deadline - time.monotonic())
    if limit < _LEAST_S:
        _tell(f"{name}: left out, no time is left")
        return "left out: no time was left"
    _tell(f"{name}: begins, at most {limit:.0f} s")
    command = [sys.executable, "-m", _MODULE, "--part", name, "--folder", str(folder), "--out", str(given.out)]
    command += ["--limit-s", f"{limit:.0f}", *(["--cpu-rehearsal"] if given.cpu_rehearsal else [])]
    command += ["--vocabulary", str(given.vocabulary)] if given.vocabulary else []
    began = time.monotonic()
    with open(given.out.resolve() / _LOGS, "ab") as log:
        log.write(f"\n===== {name}\n".encode())
        log.flush()
        process = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(limit)
            how = "ended" if code == 0 else f"broke, exit code {code}"
        except subprocess.TimeoutExpired:
            how = f"killed after {limit:.0f} s"
        finally:
            _kill_below(process, folder)
    _tell(f"{name}: {how}, {time.monotonic() - began:.0f} s")
    return how


def _kill_below(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill what is left of the part: its own session, and programs of stages, which have sessions of their own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{folder}/".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue  # it has ended


def _report(path: Path, part: str, figures: Mapping[str, Any]) -> None:
    """Keep one line of figures, with the part; threads write whole lines."""
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps({"part": part, **figures}) + "\n")


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the figures that the parts kept; empty if there are none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
