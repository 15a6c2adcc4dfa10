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
from containers.launch.base import Launch, StageExit
from containers.launch.process import ProcessRuntime
from flows.open_run import open_run
from tasks.build_base_model import build_base_model
from tasks.config.loading import load_run_config
from tasks.display import SilentDisplay, install_display
from tasks.evaluate_policy import evaluate_policy
from tasks.evaluate_reward_model import evaluate_reward_model
from tasks.filter_dataset import filter_dataset
from tasks.run.state import PipelineRun
from tasks.train_policy import train_policy
from tasks.train_reward_model import train_reward_model
from tasks.train_sft import train_sft
from tasks.write_report import write_report

SABOTAGED = Path(__file__).with_name("sabotaged_stage.py")


class JsonLines(SilentDisplay):
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

    def run(self, launch: Launch) -> StageExit:
        if launch.spec.stage is not self._held:
            return super().run(launch)
        spec_file = launch.spec_folder / SPEC_FILE
        return ProcessRuntime(command=(sys.executable, str(SABOTAGED), "hold", "0", str(spec_file))).run(launch)


def drive(run: PipelineRun, config, last: StageName) -> None:  # type: ignore[no-untyped-def]
    """Every stage up to `last`."""
    pairs = filter_dataset.fn(run, config.filter_dataset, config.dataset, base_model=None)
    if last is StageName.FILTER_DATASET:
        return
    model = build_base_model.fn(run, config.build_base_model, pairs, tokenizer_file=None)
    if config.train_sft:
        model = train_sft.fn(run, config.train_sft, pairs, model)
    if last in (StageName.BUILD_BASE_MODEL, StageName.TRAIN_SFT):
        return
    reward_model = train_reward_model.fn(run, config.train_reward_model, pairs, model)
    if last is StageName.TRAIN_REWARD_MODEL:
        return
    gate = evaluate_reward_model.fn(
        run, config.evaluate_reward_model, config.gates.reward_model, pairs=pairs, reward_model=reward_model
    )
    if last is StageName.EVALUATE_REWARD_MODEL:
        return
    policy = train_policy.fn(
        run, config.train_policy, pairs=pairs, start_model=model, reward_model=reward_model, gate=gate
    )
    if last is StageName.TRAIN_POLICY:
        return
    evaluate_policy.fn(
        run,
        config.evaluate_policy,
        config.gates.policy,
        pairs=pairs,
        start_model=model,
        policy=policy,
        reward_model=reward_model,
    )
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
