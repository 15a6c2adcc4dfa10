"""The records that the report is written from. The page names missing and unreadable ones; none stops the report."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from containers.contracts.certificate import Certificate
from containers.contracts.champions import DECISIONS_INPUT, RunDecision, RunDecisions
from containers.contracts.evidence import Evidence
from containers.contracts.funnel import Funnel
from containers.contracts.hardware import MeasuredContract
from containers.contracts.manifest import Manifest
from containers.contracts.names import (
    CERTIFICATE_FILE,
    COMPLETIONS_FILE,
    CURVES_FILE,
    EVIDENCE_FILE,
    FUNNEL_FILE,
    MANIFEST_FILE,
    POLICY_EVALUATION_FILE,
    SETS_EVALUATION_FILE,
    TRAINING_INFO_FILE,
    StageName,
)
from containers.contracts.records import GateVerdict, PipelineRecord, PolicyEvaluation, StageRecord, TrainingInfo
from containers.evals.sets.records import SetsEvaluation
from containers.harness.context import StageContext
from containers.harness.errors import BadDataError, MissingPrerequisiteError
from containers.report.curves import Curves, read_curves
from containers.report.policy.expected import Expected, read_expected
from containers.report.written import WrittenStep, read_written

logger = logging.getLogger(__name__)

PIPELINE_INPUT = "pipeline"
TRAINING_STAGES = (
    StageName.TRAIN_SFT,
    StageName.TRAIN_REWARD_MODEL,
    StageName.TRAIN_DPO,
    StageName.TRAIN_POLICY,
)

Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class ReportInputs:
    """Everything that the page shows. None or an absent key: the stage did not run, or left nothing readable."""

    pipeline: PipelineRecord
    seed: int
    funnel: Funnel | None = None
    prompts: Funnel | None = None
    demonstrations: Funnel | None = None
    reward_model: Certificate | None = None
    policy: PolicyEvaluation | None = None
    sets: SetsEvaluation | None = None
    training: Mapping[StageName, TrainingInfo] = field(default_factory=dict)
    curves: Mapping[StageName, Curves] = field(default_factory=dict)
    manifests: Mapping[StageName, Manifest] = field(default_factory=dict)
    measured: Mapping[str, MeasuredContract] = field(default_factory=dict)
    evidence: Evidence | None = None
    written: tuple[WrittenStep, ...] = ()
    expected: tuple[Expected, ...] = ()
    decisions: tuple[RunDecision, ...] = ()
    problems: tuple[str, ...] = ()

    def stage(self, stage: StageName) -> StageRecord | None:
        """Return the record of that stage; None if the run did not reach it."""
        return next((record for record in self.pipeline.stages if record.stage is stage), None)

    def gate(self, name: str) -> GateVerdict | None:
        """Return the verdict of that gate; None if the run did not reach it."""
        return next((verdict for verdict in self.pipeline.gates if verdict.name == name), None)


def load_report_inputs(context: StageContext) -> ReportInputs:
    """Read the pipeline record and the records of every stage.

    Raises:
        MissingPrerequisiteError: there is no input `pipeline`.
        BadDataError: the pipeline record cannot be read; there is nothing to report on.
    """
    pipeline = _pipeline(context.input_path(PIPELINE_INPUT))
    problems: list[str] = []
    folders = {
        stage: Path(item.path) for item in context.spec.inputs for stage in StageName if item.name == stage.value
    }
    for stage, folder in folders.items():
        if not folder.is_dir():
            problems.append(f"The artifact of {stage} is not at {folder}: its section is empty.")

    def record(stage: StageName, name: str, model: type[Record]) -> Record | None:
        folder = folders.get(stage)
        return _record(folder / name, model, stage, problems) if folder and folder.is_dir() else None

    training = {stage: record(stage, TRAINING_INFO_FILE, TrainingInfo) for stage in TRAINING_STAGES}
    policy = folders.get(StageName.TRAIN_POLICY)
    manifests = {stage: record(stage, MANIFEST_FILE, Manifest) for stage in folders}
    curves = {stage: read_curves(folders[stage] / CURVES_FILE) for stage in TRAINING_STAGES if stage in folders}
    return ReportInputs(
        pipeline=pipeline,
        seed=context.spec.seed,
        funnel=record(StageName.FILTER_DATASET, FUNNEL_FILE, Funnel),
        prompts=record(StageName.FILTER_PROMPTS, FUNNEL_FILE, Funnel),
        demonstrations=record(StageName.FILTER_DEMONSTRATIONS, FUNNEL_FILE, Funnel),
        reward_model=record(StageName.EVALUATE_REWARD_MODEL, CERTIFICATE_FILE, Certificate),
        policy=record(StageName.EVALUATE_POLICY, POLICY_EVALUATION_FILE, PolicyEvaluation),
        sets=record(StageName.EVALUATE_SETS, SETS_EVALUATION_FILE, SetsEvaluation),
        training={stage: info for stage, info in training.items() if info},
        curves=curves,
        manifests={stage: manifest for stage, manifest in manifests.items() if manifest},
        measured=_measured(pipeline, problems),
        evidence=None if policy is None else Evidence.read_if_valid(policy / EVIDENCE_FILE),
        written=() if policy is None else read_written(policy / COMPLETIONS_FILE),
        expected=() if policy is None else read_expected(policy / COMPLETIONS_FILE),
        decisions=_decisions(context, problems),
        problems=tuple(problems),
    )


def _pipeline(path: Path) -> PipelineRecord:
    try:
        return PipelineRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise BadDataError(
            f"The pipeline record {path} cannot be read, so there is nothing to report on: {error}\n"
            "The orchestrator writes it; run `rlhf report` again with the version that made the run."
        ) from error


def _record(path: Path, model: type[Record], stage: StageName, problems: list[str]) -> Record | None:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        problems.append(f"{path.name} of {stage} is missing: its section is empty.")
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be read: %s", path, error)
        problems.append(f"{path.name} of {stage} cannot be read: {type(error).__name__}.")
    return None


def _decisions(context: StageContext, problems: list[str]) -> tuple[RunDecision, ...]:
    """Read the decisions of a retraining; empty for every other run."""
    if not context.has_input(DECISIONS_INPUT):
        return ()
    try:
        return RunDecisions.model_validate_json(context.input_path(DECISIONS_INPUT).read_bytes()).decisions
    except (OSError, ValidationError, MissingPrerequisiteError) as error:
        logger.warning("The decisions of the retraining cannot be read: %s", error)
        problems.append("What the retraining decided cannot be read. See the champion's history: rlhf champion.")
        return ()


def _measured(pipeline: PipelineRecord, problems: list[str]) -> dict[str, MeasuredContract]:
    found = {}
    for stage, text in pipeline.measured:
        try:
            found[stage] = MeasuredContract.model_validate_json(text)
        except ValidationError:
            problems.append(f"The measured contract of {stage} cannot be read.")
    return found
