"""Measure one run of filter_dataset, for filter_speed: seconds, memory, digests; and by step.

    python benchmarks/filter_run.py ROWS FEW_ROWS --suite NAME=FILE… [--language] [--steps]

It imports the project that `PYTHONPATH` names, so an older tree runs under the same clock. A first run on FEW_ROWS
loads libraries and tables; a second one measures the cost that does not grow with the rows.
"""

import argparse
import functools
import hashlib
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.parts.row_filters import HeldOutSuite
from containers.contracts.funnel import Funnel
from containers.contracts.hardware import BatchPlan, GpuProfile, RequiredContract
from containers.contracts.names import EVENTS_FILE, StageName
from containers.contracts.spec import StageInput, StageSpec
from containers.data import sources
from containers.data.filters import inputs as filter_inputs
from containers.data.filters.pair_chain import PairChain
from containers.harness.context import StageContext
from containers.harness.recorder import Recorder
from containers.stages import filter_dataset

_STEPS_OF_THE_CHAIN = {
    "by_language_column": "filters",
    "by_detected_language": "language",
    "by_flaws": "filters",
    "by_repetition": "repetition",
    "by_contamination": "contamination",
    "by_near_duplication": "near-duplicates",
    "by_similar_prompts": "similar prompts",
    "by_share": "split",
    "by_sampling": "split",
}


class Clock:
    """CPU seconds of the steps of a run; a step does not include other steps that it calls."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = time.process_time()

    def enter(self, step: str) -> None:
        self._book()
        self._open.append(step)

    def leave(self) -> None:
        self._book()
        self._open.pop()

    def _book(self) -> None:
        now = time.process_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def function(self, owner: Any, name: str, step: str) -> None:
        """Count this function's time as that step."""
        inner: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(step)
            try:
                return inner(*args, **kwargs)
            finally:
                self.leave()

        setattr(owner, name, timed)

    def generator(self, owner: Any, name: str, step: str) -> None:
        """Count the time of a function that yields as that step."""
        inner: Callable[..., Iterator[Any]] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Iterator[Any]:
            items = inner(*args, **kwargs)
            while True:
                self.enter(step)
                try:
                    item = next(items)
                except StopIteration:
                    return
                finally:
                    self.leave()
                yield item

        setattr(owner, name, timed)


def watched_clock() -> Clock:
    """Return a clock that watches the steps of the stage."""
    clock = Clock()
    clock.generator(sources, "read_lines", "read")
    clock.function(filter_inputs, "read_source", "schema")
    clock.function(filter_dataset, "checked_polarity", "polarity")
    for name, step in _STEPS_OF_THE_CHAIN.items():
        clock.function(PairChain, name, step)
    clock.function(filter_dataset, "suite_prompts", "contamination")
    clock.function(filter_dataset, "_divide", "split")
    clock.function(filter_dataset, "_check", "split")
    clock.function(filter_dataset, "write_artifact", "write")
    return clock


def filtered(rows: Path, suites: Mapping[str, Path], *, with_language: bool) -> tuple[float, dict[str, str], Funnel]:
    """Return the stage's CPU seconds on these rows, the digest of every file that it wrote, and its funnel."""
    with tempfile.TemporaryDirectory() as scratch:
        context = _context(Path(scratch), rows, suites, with_language=with_language)
        started = time.process_time()
        filter_dataset.run(context)
        seconds = time.process_time() - started
        funnel = Funnel.model_validate_json((context.output / "funnel.json").read_bytes())
        files = sorted(path for path in context.output.rglob("*") if path.is_file())
        digests = {
            path.relative_to(context.output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
        }
    return seconds, digests, funnel


def _context(scratch: Path, rows: Path, suites: Mapping[str, Path], *, with_language: bool) -> StageContext:
    held_out = tuple(HeldOutSuite(name=name, benchmark=name) for name in suites)
    files = {"train_data": rows} | {f"suite_{name}": path for name, path in suites.items()}
    spec = StageSpec(
        stage=StageName.FILTER_DATASET,
        key="c" * 64,
        config=FilterDatasetConfig(check_language_on_text=with_language, suites=held_out),
        inputs=tuple(
            StageInput(name=name, path=str(path.resolve()), digest="sha256:0", origin=path.name)
            for name, path in files.items()
        ),
        seed=7,
        profile=GpuProfile(name="cpu", num_gpus=0, precision="float32"),
        batch=BatchPlan(global_batch_size=1, per_device_batch_size=1, num_processes=1, gradient_accumulation_steps=1),
        required=RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False),
        runtime="process",
        work_path=str(scratch),
    )
    context = StageContext(spec=spec, work=scratch, recorder=Recorder(scratch / EVENTS_FILE))
    context.output.mkdir(parents=True)
    return context


def peak_mib() -> float:
    """Return the peak memory of this program, without that of the process that started it (`ru_maxrss` has it)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("few_rows", type=Path)
    parser.add_argument("--suite", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--language", action="store_true")
    parser.add_argument("--steps", action="store_true", help="watch the steps; the clock itself takes time then")
    given = parser.parse_args()
    suites = {name: Path(path) for name, path in (pair.split("=", 1) for pair in given.suite)}
    run = functools.partial(filtered, suites=suites, with_language=given.language)
    loading_s, _, _ = run(given.few_rows)
    few_s, _, few = run(given.few_rows)
    before_mib = peak_mib()
    clock = watched_clock() if given.steps else Clock()
    seconds, digests, funnel = run(given.rows)
    found = {
        "seconds": seconds,
        "loading_s": loading_s,
        "few_s": few_s,
        "few_rows": few.rows_read,
        "steps": dict(clock.seconds),
        "peak_mib": peak_mib(),
        "before_mib": before_mib,
        "rows": funnel.rows_read,
        "dropped": {step.reason: step.dropped for step in funnel.steps if step.dropped},
        "digests": digests,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
