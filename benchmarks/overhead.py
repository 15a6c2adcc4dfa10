"""Measure what the pipeline costs beside its programs. Figures: overhead.md.

    python -m benchmarks.overhead [--config configs/runs/demo.yaml] [--alternations 3] [--until STAGE]
        [--servers] [--write]

Each alternation runs `rlhf run` in a new folder, with all its parts (Prefect, MLflow, system check, manifests, one
process a stage). Then it runs the same programs bare, one after the other, on the specs that the run wrote:
`python -m containers.stages.entry SPEC`. The difference is the pipeline's cost.

With --servers, both servers run before the clock starts, as on a team's machine; without, each run starts its own.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.provenance import commit, when_and_where
from containers.contracts.names import SPEC_FILE
from containers.contracts.spec import StageSpec
from containers.launch.arguments import process_arguments, process_environment
from containers.launch.base import STAGE_LOG_FILE
from flows.demo.rows import write_demo_data
from flows.servers.local import local_servers
from flows.servers.settings import ServerSettings

PROJECT = Path(__file__).resolve().parents[1]
DEMO = PROJECT / "configs" / "runs" / "demo.yaml"
PAGE = Path(__file__).with_suffix(".md")
WANTED_S = 15.0


@dataclass(frozen=True)
class Stage:
    """A stage of one run: its start and end in seconds from the run's start, and the seconds of its program alone."""

    name: str
    spec: Path
    began_s: float
    ended_s: float
    bare_s: float = 0.0


@dataclass(frozen=True)
class Alternation:
    """One run of the pipeline, and one of its programs bare."""

    total_s: float
    stages: tuple[Stage, ...]

    @property
    def bare_s(self) -> float:
        return sum(stage.bare_s for stage in self.stages)

    @property
    def parts(self) -> dict[str, float]:
        """The pipeline's own seconds, by part."""
        first, last = self.stages[0], self.stages[-1]
        running = sum(stage.ended_s - stage.began_s for stage in self.stages)
        return {
            "before the first stage": first.began_s,
            "between stages": last.ended_s - first.began_s - running,
            "programs slower than bare": running - self.bare_s,
            "after the last stage": self.total_s - last.ended_s,
        }


def run_pipeline(config: Path, folder: Path, *, options: Sequence[str]) -> Alternation:
    """Run `rlhf run` with these options in that folder, which is empty but for the data."""
    command = [sys.executable, "-m", "flows.cli.main", "run", "-c", str(config), *options]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    began, clock = time.time(), time.perf_counter()
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    total_s = time.perf_counter() - clock
    if ended.returncode:
        raise SystemExit(f"The run failed, so there is nothing to compare.\n{ended.stdout}{ended.stderr}")
    # The spec is written just before the program starts, the log's last line when it ends.
    stages = [
        Stage(
            name=spec.parents[2].name,
            spec=spec,
            began_s=spec.stat().st_mtime - began,
            ended_s=(spec.parent / STAGE_LOG_FILE).stat().st_mtime - began,
        )
        for spec in folder.glob(f"outputs/**/attempts/*/*/attempt-1/{SPEC_FILE}")
    ]
    return Alternation(total_s, tuple(sorted(stages, key=lambda stage: stage.began_s)))


def with_bare_programs(run: Alternation, folder: Path) -> Alternation:
    """Run each program alone, in its own work folder; return the run with those seconds."""
    stages = []
    for stage in run.stages:
        spec = StageSpec.model_validate_json(stage.spec.read_bytes())
        work = folder / stage.name
        work.mkdir(parents=True)
        spec = spec.model_copy(update={"work_path": str(work)})
        file = folder / f"{stage.name}.json"
        file.write_text(spec.model_dump_json(), encoding="utf-8")
        environment = process_environment(spec, parent=os.environ, sources=PROJECT)
        clock = time.perf_counter()
        ended = subprocess.run(
            process_arguments(file), cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise SystemExit(f"{stage.name} failed when it ran bare.\n{ended.stdout}{ended.stderr}")
        stages.append(Stage(stage.name, stage.spec, stage.began_s, stage.ended_s, time.perf_counter() - clock))
    return Alternation(run.total_s, tuple(stages))


def alternations(config: Path, *, count: int, with_servers: bool, until: str | None) -> Iterator[Alternation]:
    """Yield that many alternations, each in its own folder."""
    options = ["--until", until] if until else []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
            folder = Path(scratch) / "run"
            write_demo_data(folder / "outputs" / "demo" / "data")
            if with_servers:
                state = folder / "outputs" / ".servers"
                stack.enter_context(local_servers(ServerSettings(state_dir=state), say=lambda _: None))
            yield with_bare_programs(run_pipeline(config, folder, options=options), Path(scratch) / "bare")


def middle(values: Sequence[float]) -> str:
    """Return the median, with the least and the most in brackets."""
    ordered = sorted(values)
    return f"{statistics.median(ordered):.1f} ({ordered[0]:.1f} to {ordered[-1]:.1f})"


def page(runs: Sequence[Alternation], *, command: str, load: str, where: str) -> Iterator[str]:
    """Yield the lines of the page."""
    own = [run.total_s - run.bare_s for run in runs]
    share = statistics.median(seconds / 3600 for seconds in own)
    yield f"""# What the pipeline costs beside its programs

    {command}

`rlhf run` in a fresh folder against the same programs started bare on the same specs, {len(runs)} times by turns.
Seconds: the median, in brackets the least and the most.

{where}, load average {load} while it ran;
Prefect {version("prefect")}, MLflow {version("mlflow")}.

| | seconds |
| --- | ---: |
| the whole run | {middle([run.total_s for run in runs])} |
| its programs, bare | {middle([run.bare_s for run in runs])} |
| **the pipeline's own** (wanted for the demo: under {WANTED_S:g}) | **{middle(own)}** |"""
    for name in runs[0].parts:
        yield f"| … {name} | {middle([run.parts[name] for run in runs])} |"
    yield f"""
Of a run of one hour that would be {share:.1%}.

| stage | in the pipeline | bare | difference |
| --- | ---: | ---: | ---: |"""
    for place, stage in enumerate(runs[0].stages):
        of_stage = [run.stages[place] for run in runs]
        within = [one.ended_s - one.began_s for one in of_stage]
        bare = [one.bare_s for one in of_stage]
        more = [seconds - alone for seconds, alone in zip(within, bare, strict=True)]
        yield f"| {stage.name} | {middle(within)} | {middle(bare)} | {middle(more)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--config", type=Path, default=DEMO, help="a run that is done in minutes; the demo unless given"
    )
    parser.add_argument("--until", metavar="STAGE", help="the last stage before the report, instead of all")
    parser.add_argument("--alternations", type=int, default=3, help="3 unless given")
    parser.add_argument("--servers", action="store_true", help="Prefect and MLflow run before the clock starts")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}; without it, print")
    given, measured = parser.parse_args(), commit()
    loads, runs = [os.getloadavg()[0]], []
    config = given.config.resolve()
    for run in alternations(config, count=given.alternations, with_servers=given.servers, until=given.until):
        runs.append(run)
        loads.append(os.getloadavg()[0])
    where = when_and_where(measured)
    command = f"python -m benchmarks.overhead {' '.join(sys.argv[1:])}".rstrip()
    text = "\n".join(page(runs, command=command, load=f"{min(loads):.1f} to {max(loads):.1f}", where=where)) + "\n"
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0 if statistics.median(run.total_s - run.bare_s for run in runs) < WANTED_S else 1


if __name__ == "__main__":
    sys.exit(main())
