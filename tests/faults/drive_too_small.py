"""As `drive_stages.py`, but one stage meets a machine that is too small for it.

`python drive_too_small.py WHAT ROOM STEP STAGE CONFIG [--set key=value …]`; WHAT, ROOM and STEP as in
`too_small_machine.py`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Literal

from drive_stages import JsonLines, drive

from containers.contracts.names import SPEC_FILE, StageName
from containers.launch.arguments import docker_command
from containers.launch.base import LaunchRequest, StageExit, StageRuntime
from containers.launch.docker.runtime import DockerRuntime
from containers.launch.process import ProcessRuntime
from tasks.config.loading import load_run_config
from tasks.display import install_display
from tasks.pipeline.open_run import open_run

MACHINE = Path(__file__).with_name("too_small_machine.py")


class TooSmallMachine:
    """A runtime, but one stage's program meets that machine."""

    def __init__(self, usual: StageRuntime, machine: tuple[str, ...], stage: StageName) -> None:
        self._usual, self._machine, self._stage = usual, machine, stage

    @property
    def name(self) -> Literal["docker", "process"]:
        return self._usual.name

    def run(self, launch: LaunchRequest) -> StageExit:
        if launch.spec.stage is not self._stage:
            return self._usual.run(launch)
        if self.name == "docker":  # whose container has the image's files alone
            program = ("python", "-c", MACHINE.read_text(), *self._machine, docker_command()[-1])
            return DockerRuntime(command=program).run(launch)
        spec_file = (launch.spec_folder / SPEC_FILE).resolve()
        return ProcessRuntime(command=(sys.executable, str(MACHINE), *self._machine, str(spec_file))).run(launch)


def main() -> int:
    """0 where every stage stands; 1 with the error's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("machine", nargs=3)
    parser.add_argument("stage", type=StageName)
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    install_display(JsonLines())
    loaded = load_run_config(arguments.config, overrides=arguments.overrides)
    try:
        with open_run(loaded.config, command="", config_yaml="") as run:
            run.runtime = TooSmallMachine(run.runtime, tuple(arguments.machine), arguments.stage)
            drive(run, loaded.config, arguments.stage)
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
