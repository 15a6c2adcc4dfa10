"""Runs the first stages of a run without a Prefect server: `python drive_stages.py CONFIG STAGE [--set key=value …]`.

The same functions, runtimes and stage programs as in `flows.rlhf`, up to and with STAGE; for faults that concern stages
and not the orchestration server. Prints one JSON line per stage that ended.
"""

import argparse
import json
import sys
from pathlib import Path

from containers.contracts.names import SPEC_FILE, StageName
from containers.contracts.records import StageRecord
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.process import ProcessRuntime
from flows.rlhf import TASKS, Maker
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.display import Display, install_display
from tasks.pipeline.open_run import open_run
from tasks.pipeline.stages import STAGES, Made, Stage, walk
from tasks.run.state import PipelineRun
from tasks.write_report import write_report

SABOTAGED = Path(__file__).with_name("sabotaged_stage.py")


class JsonLines(Display):
    """Says what happens, a line each."""

    def stage_started(self, stage: StageName, text: str) -> None:
        print(json.dumps({"started": stage, "text": text}), flush=True)

    def stage_ended(self, record: StageRecord) -> None:
        print(json.dumps({"ended": record.stage, "status": record.status, "message": record.message}), flush=True)

    def say(self, text: str, *, is_logged: bool = False) -> None:
        print(json.dumps({"said": text}), flush=True)


class HeldRuntime(ProcessRuntime):
    """Processes, of which one stage stops itself when its files are written and their manifest is not."""

    def __init__(self, held: StageName) -> None:
        super().__init__()
        self._held = held

    def run(self, launch: LaunchRequest) -> StageExit:
        if launch.spec.stage is not self._held:
            return super().run(launch)
        spec_file = launch.spec_folder / SPEC_FILE
        return ProcessRuntime(command=(sys.executable, str(SABOTAGED), "hold", "0", str(spec_file))).run(launch)


class Direct(Maker):
    """Makes each stage by the function of its task, without Prefect; its gates are judged, and close nothing."""

    def made(self, stage: Stage, made: Made) -> object:
        return TASKS[stage.name].fn(self._run, **{role: made[role] for role in stage.read_in(self._run.config)})


def drive(run: PipelineRun, config: RunConfig, last: StageName) -> None:
    """Every stage up to `last`."""
    names = list(StageName)
    stages = tuple(stage for stage in STAGES if names.index(stage.name) <= names.index(last))
    for _ in walk(config, Direct(run), made={"checked": None}, stages=stages):
        pass
    if last is StageName.WRITE_REPORT:
        write_report.fn(run, config.write_report)


def main() -> int:
    """0 where every stage stands; 1 with the error's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("stage", type=StageName)
    parser.add_argument("--hold", type=StageName, help="stop this stage just before it writes its manifest")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    install_display(JsonLines())
    loaded = load_run_config(arguments.config, overrides=arguments.overrides)
    try:
        with open_run(loaded.config, command="", config_yaml="") as run:
            if arguments.hold:
                run.runtime = HeldRuntime(arguments.hold)
            drive(run, loaded.config, arguments.stage)
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
