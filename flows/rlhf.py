"""The whole pipeline: from preferences to a judged reward model, a judged policy and an honest report."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from prefect import flow

from containers.contracts.names import StageName
from containers.contracts.pipeline import STAGE_FACTS
from containers.contracts.spec import StageInput
from tasks.answer_sets import answer_sets
from tasks.build_base_model import build_base_model
from tasks.check_system import check_system
from tasks.compute_reference import compute_reference
from tasks.config.run import RunConfig
from tasks.config.sources import ModelSource
from tasks.evaluate_policy import evaluate_policy
from tasks.evaluate_reward_model import evaluate_reward_model
from tasks.evaluate_sets import evaluate_sets
from tasks.filter_dataset import filter_dataset
from tasks.filter_demonstrations import filter_demonstrations
from tasks.filter_prompts import filter_prompts
from tasks.gates.approval import opened, wait_for_decision
from tasks.pipeline.left_pairs import demand_people
from tasks.pipeline.open_run import open_run
from tasks.pipeline.pairs_form import wait_for_people
from tasks.pipeline.reward_models import named_model, named_reward_model
from tasks.pipeline.stage_task import StageTask
from tasks.pipeline.stages import Made, Stage, walk
from tasks.prefect_sync.cancellation import RunCancelledError, never
from tasks.prefect_sync.link import why_stopped
from tasks.run.names import flow_run_name
from tasks.run.state import PipelineRun
from tasks.sample_completions import sample_completions
from tasks.train_dpo import train_dpo
from tasks.train_policy import train_policy
from tasks.train_reward_model import train_reward_model
from tasks.train_sft import train_sft
from tasks.write_report import write_report

Stages: TypeAlias = Callable[[PipelineRun, RunConfig, object], Iterator[object]]


@flow(name="rlhf", flow_run_name=flow_run_name, validate_parameters=False)
def rlhf(config: RunConfig, *, command: str = "", config_yaml: str = "") -> Path:
    """Run the pipeline for `rlhf run`, and return the path of its report. See `run_stages`."""
    return run_stages(config, command=command, config_yaml=config_yaml)


def run_stages(config: RunConfig, *, command: str, config_yaml: str, stages: Stages | None = None) -> Path:
    """Run system check, stages and report in any flow. Also write the report if a gate closes or a stage fails.

    Args:
        config: the run, as in `configs/runs/*.yaml`.
        command: how to repeat this run; for the report.
        config_yaml: the effective configuration as text; for the report.
        stages: the stages between system check and report, in order; None: `train_and_judge`.

    Returns:
        Path of the report.

    Raises:
        SystemCheckError: something that the run needs is missing; nothing was spent.
        StageFailedError: a stage failed.
        GateClosedError: a model missed its gate without a waiver, or a person rejected it.
        PersonAwaitedError: a person must decide about a model, or judge pairs; after that, start the run again.
        Pause: the same, if Prefect starts the flow run again after the decision.
        RunCancelledError: a user cancelled or deleted the run in Prefect.
    """
    with open_run(config, command=command, config_yaml=config_yaml) as run:
        checked = check_system(run)
        last: object = None
        try:
            for made in (stages or train_and_judge)(run, config, checked):
                last = made
                if run.is_at_its_end:
                    break
        except Exception as error:
            was_cancelled, run.should_stop = run.should_stop(), never  # the report is still written
            run.stopped_because = str(error)
            if was_cancelled:
                _name_who_stopped(run)
            try:
                write_report(run, config.write_report)
            except Exception as report_error:  # the first error is the one to read
                error.add_note(f"The report could not be written either: {report_error}")
            if was_cancelled:
                raise RunCancelledError(why_stopped()) from error
            wait_for_decision(error)
            wait_for_people(error)
            raise
        return write_report(run, config.write_report, after=last)


def _name_who_stopped(run: PipelineRun) -> None:
    """Say in the record of a stopped stage, which the report shows, that a user stopped it in Prefect."""
    for record in [record for record in run.records if record.status == "failed"]:
        run.remember(record.model_copy(update={"message": f"{why_stopped()} {record.message}"}))


# The task of each stage.
TASKS: Mapping[StageName, StageTask[Any, Any]] = {
    StageName.FILTER_DATASET: filter_dataset,
    StageName.FILTER_PROMPTS: filter_prompts,
    StageName.FILTER_DEMONSTRATIONS: filter_demonstrations,
    StageName.BUILD_BASE_MODEL: build_base_model,
    StageName.TRAIN_SFT: train_sft,
    StageName.TRAIN_REWARD_MODEL: train_reward_model,
    StageName.EVALUATE_REWARD_MODEL: evaluate_reward_model,
    StageName.COMPUTE_REFERENCE: compute_reference,
    StageName.TRAIN_DPO: train_dpo,
    StageName.TRAIN_POLICY: train_policy,
    StageName.ANSWER_SETS: answer_sets,
    StageName.EVALUATE_SETS: evaluate_sets,
    StageName.SAMPLE_COMPLETIONS: sample_completions,
    StageName.EVALUATE_POLICY: evaluate_policy,
}


def train_and_judge(run: PipelineRun, config: RunConfig, checked: object) -> Iterator[object]:
    """Run every stage between system check and report, in order; the run may end after each."""
    for _, made in walk(config, Maker(run), made={"checked": checked}):
        yield made


class Maker:
    """Runs each stage by its task; a model reaches the next stage only if its gate opens."""

    def __init__(self, run: PipelineRun) -> None:
        self._run = run

    def made(self, stage: Stage, made: Made) -> object:
        """Return the task's result, or the gate's verdict if the stage judges a model.

        Raises:
            StageFailedError: the stage failed.
            GateClosedError, GateWaitsError: as `opened`.
            PeopleWaitedForError: people have yet to judge the policy.
        """
        if stage.name is StageName.EVALUATE_POLICY:
            demand_people(self._run.config, made["completions"], command=self._run.command)
        result = TASKS[stage.name](self._run, **{role: made[role] for role in stage.read_in(self._run.config)})
        judged = STAGE_FACTS[stage.name].judges
        return result if judged is None else opened(self._run, result, getattr(self._run.config.gates, judged))

    def named(self, stage: Stage, source: ModelSource) -> StageInput:
        """The model that the run names, fetched if necessary."""
        return named_reward_model(source) if stage.role == "reward_model" else named_model(self._run, source)
