"""Everything that this project measures on GPUs, in one command: python -m benchmarks.gpu -c FILE --write

First `rlhf selftest` of that run, in the image or as processes; then, as programs of their own, `benchmarks.on_gpu`
(stages, policies, exactness, and steps and generation beside TRL and transformers) and `benchmarks.attention_ways`.
A program that breaks costs the others nothing.

    -c FILE          the run whose model and profile are tested
    --profile NAME   another GPU profile
    --minutes N      for `benchmarks.on_gpu`; 8 unless given
    --write          write the page benchmarks/gpu.md
"""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.page import selftest_text
from benchmarks.provenance import PROJECT, commit, when_and_where
from containers.contracts.configs.selftest import Selftest
from flows.cli.main import main as rlhf
from tasks.config.errors import ConfigError
from tasks.config.loading import load_run_config
from tasks.store.selftests import kept_selftests

_PAGE = PROJECT / "benchmarks" / "gpu.md"
_FOLDER = PROJECT / "outputs" / "on-gpu"
_TITLE = "# On GPUs"


def main() -> int:
    """Measure; return 1 if the self-test or a program failed, 2 for a run that cannot be read, or has no GPUs."""
    given = _arguments()
    options = ["-c", str(given.config), *(["--profile", given.profile] if given.profile else [])]
    try:
        run = load_run_config(given.config, profile=given.profile).config
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if not run.gpu_profile.num_gpus:
        print(f"Profile `{run.gpu_profile.name}` has no GPUs: name one that has, with --profile.", file=sys.stderr)
        return 2
    measured = commit()
    failed = rlhf(["selftest", *options]) != 0
    record = next(kept_selftests(run.store_dir), None)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    on_gpu = _program("benchmarks.on_gpu", "--minutes", f"{given.minutes:g}", "--out", str(_FOLDER))
    attention = _program("benchmarks.attention_ways")
    if given.write:
        command = " ".join(["python -m benchmarks.gpu", *options, "--write"])
        _PAGE.write_text(page(record, command=command, measured=measured, attention=attention[1]), encoding="utf-8")
        print(f"Written: {_PAGE}")
    return int(failed or on_gpu[0] != 0 or attention[0] != 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, required=True, help="the run whose model and profile are tested")
    parser.add_argument("--profile", help="another GPU profile")
    parser.add_argument("--minutes", type=float, default=8.0, help="for benchmarks.on_gpu; 8 unless given")
    parser.add_argument("--write", action="store_true", help=f"write the page {_PAGE.relative_to(PROJECT)}")
    return parser.parse_args()


def _program(module: str, *arguments: str) -> tuple[int, str]:
    """Run a benchmark; return its exit code and what it printed, which is also shown."""
    ran = subprocess.run([sys.executable, "-m", module, *arguments], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    print(ran.stdout, flush=True)
    return ran.returncode, ran.stdout


def page(record: Selftest | None, *, command: str, measured: str, attention: str) -> str:
    """Return the page: the self-test, then the pages of the programs; what is missing is named."""
    own = _FOLDER / "gpu.md"
    found = own.read_text(encoding="utf-8") if own.is_file() else "`benchmarks.on_gpu` left no page."
    parts = [
        _TITLE,
        f"`{command}`",
        f"{when_and_where(measured)}.",
        "## Self-test",
        "No self-test was kept." if record is None else selftest_text(record),
        "## Attention over packed pairs",
        f"```\n{attention.strip() or 'It printed nothing.'}\n```",
        # Its title becomes a heading of this page, its headings one level lower.
        "\n".join(f"#{line}" if line.startswith("#") else line for line in found.strip().splitlines()),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
