"""Realistic runs for the tests of the report: folders and records as the stages and the orchestrator leave them."""

import json
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.configs.write_report import WriteReportConfig
from containers.contracts.digests import content_digest, file_entries
from containers.contracts.hardware import BatchPlan, GpuProfile, RequiredContract
from containers.contracts.manifest import LineageEntry, Manifest
from containers.contracts.names import (
    CERTIFICATE_FILE,
    CURVES_FILE,
    EVENTS_FILE,
    FUNNEL_FILE,
    MANIFEST_FILE,
    OUTPUT_FOLDER,
    OVER_RUNS,
    POLICY_EVALUATION_FILE,
    REPORT_INPUT_FILE,
    TRAINING_INFO_FILE,
    StageName,
)
from containers.contracts.records import CheckFinding, PipelineRecord, StageRecord
from containers.contracts.spec import StageInput, StageSpec
from containers.harness.context import StageContext
from containers.harness.recorder import Recorder
from tests.unit.factories.report.certificate_records import reward_model_certificate
from tests.unit.factories.report.report_records import (
    curve_lines,
    funnel,
    gate,
    measured_contract,
    policy_evaluation,
    training_info,
)

KEY = "3f" * 32
CONFIG_YAML = """run:
  name: demo
  seed: 5
train_reward_model:
  max_length: 256
  lora: {r: 32, alpha: 64}
  optimizer: {learning_rate: 1e-3}
train_policy:
  num_generations: 4
  beta: 0.05
"""
_NO_PART = (
    *OVER_RUNS,
    StageName.FILTER_PROMPTS,
    StageName.FILTER_DEMONSTRATIONS,
    StageName.COMPUTE_REFERENCE,
    StageName.TRAIN_DPO,
    StageName.ANSWER_SETS,
    StageName.EVALUATE_SETS,
)
_ORDER = tuple(stage for stage in tuple(StageName)[1:-1] if stage not in _NO_PART)


def stage_record(stage: StageName, folder: Path, *, status: str = "ran", message: str = "") -> StageRecord:
    """What the orchestrator remembers of a stage."""
    made = status in ("ran", "reused")
    return StageRecord.model_validate(
        {
            "stage": stage,
            "status": status,
            "key": KEY,
            "digest": "sha256:" + "5d" * 32 if made else "",
            "path": str(folder) if made else "",
            "runtime": "docker" if status != "skipped" else "",
            "image_digest": "sha256:" + "9c" * 32 if status != "skipped" else "",
            "duration_s": {"ran": 74.2, "failed": 12.0}.get(status, 0),
            "attempts": 1 if status in ("ran", "failed") else 0,
            "message": message,
            "mlflow_run_id": "0f3c" * 8 if status != "skipped" else "",
        }
    )


@dataclass(frozen=True)
class MadeRun:
    """Artifacts on disk, and the record of the run; change the record, then ask for the context."""

    root: Path
    pipeline: PipelineRecord

    def folder(self, stage: StageName) -> Path:
        """Where that stage's artifact lies."""
        return self.root / "artifacts" / stage / KEY

    def context(self, *, title: str = "RLHF run", pipeline: PipelineRecord | None = None) -> StageContext:
        """What write_report is given, with an input for every stage that left an artifact."""
        record = pipeline or self.pipeline
        path = self.root / REPORT_INPUT_FILE
        path.write_text(record.model_dump_json(), encoding="utf-8")
        inputs = [StageInput(name="pipeline", path=str(path), digest="sha256:0")]
        inputs += [
            StageInput(name=stage.stage, path=stage.path, digest=stage.digest) for stage in record.stages if stage.path
        ]
        work = self.root / "work"
        (work / OUTPUT_FOLDER).mkdir(parents=True, exist_ok=True)
        return StageContext(spec=_spec(work, title, inputs), work=work, recorder=Recorder(work / EVENTS_FILE))


def make_run(root: Path, *, optional_stages: bool = True, accuracy: float = 0.913, curves: bool = True) -> MadeRun:
    """A run in which every stage ran and both gates opened, with its artifacts below `root`."""
    left_out = () if optional_stages else (StageName.BUILD_BASE_MODEL, StageName.TRAIN_SFT)
    stages = [stage for stage in _ORDER if stage not in left_out]
    for stage in stages:
        folder = root / "artifacts" / stage / KEY
        folder.mkdir(parents=True)
        for name, text in _files(stage, accuracy=accuracy).items():
            if curves or name != CURVES_FILE:
                (folder / name).write_text(text, encoding="utf-8")
        _write_manifest(stage, folder)
    pipeline = PipelineRecord(
        run_id="20261121-112900-1a2b3c",
        run_name="demo",
        started_at="2026-11-21T11:29:00+00:00",
        command="rlhf run -c configs/runs/demo.yaml --set run.seed=5",
        config_yaml=CONFIG_YAML,
        git_commit="2c2ed4b9a1f04c1f5a0e7c8d9b6a5e4f3d2c1b0a",
        mlflow_url="http://127.0.0.1:5000/#/experiments/1/runs/9a9a",
        prefect_url="http://127.0.0.1:4200/runs/flow-run/1",
        profile_name="cpu",
        checks=(
            CheckFinding(name="Docker daemon", found="20.10.24", wanted="answers", verdict="ok"),
            CheckFinding(
                name="memlock limit",
                found="64.0 MiB",
                wanted="unlimited",
                verdict="warning",
                advice="Raise it: ulimit -l",
            ),
        ),
        stages=tuple(stage_record(stage, root / "artifacts" / stage / KEY) for stage in stages),
        gates=(gate("reward_model"), gate("policy")),
        dataset_origin="helpsteer3_schema_train.jsonl.gz, sha256:41c0…",
        base_model_origin="built from scratch, 2 layers × 128",
        measured=tuple((stage.value, measured_contract().model_dump_json()) for stage in stages),
    )
    return MadeRun(root, pipeline)


def with_stages(
    pipeline: PipelineRecord, *changed: StageRecord, until: StageName | None = None, why: str = ""
) -> PipelineRecord:
    """`pipeline` with some records replaced; the run did not reach the stages after `until`, for that reason."""
    replaced = {record.stage: record for record in changed}
    failed = next((f"{record.stage} failed" for record in changed if record.status == "failed"), "")
    reason = why or failed or "the run did not come this far"
    records = [
        replaced.get(record.stage, record)
        if until is None or _ORDER.index(record.stage) <= _ORDER.index(until)
        else StageRecord(stage=record.stage, status="skipped", message=reason)
        for record in pipeline.stages
    ]
    return pipeline.model_copy(update={"stages": tuple(records)})


def that_ends_with(pipeline: PipelineRecord, last: StageName) -> PipelineRecord:
    """`pipeline` as it is if the user wanted it to end with a stage."""
    kept = tuple(record for record in pipeline.stages if _ORDER.index(record.stage) <= _ORDER.index(last))
    return pipeline.model_copy(update={"stages": kept, "until": last})


def _files(stage: StageName, *, accuracy: float) -> dict[str, str]:
    steps = {StageName.TRAIN_SFT: 250, StageName.TRAIN_REWARD_MODEL: 260, StageName.TRAIN_POLICY: 50}
    if stage in steps:
        lines = curve_lines(stage, steps=steps[stage])
        return {
            TRAINING_INFO_FILE: training_info(stage, steps=steps[stage]).model_dump_json(),
            CURVES_FILE: "".join(json.dumps(line) + "\n" for line in lines),
        }
    made = {
        StageName.FILTER_DATASET: {FUNNEL_FILE: funnel().model_dump_json()},
        StageName.EVALUATE_REWARD_MODEL: {
            CERTIFICATE_FILE: reward_model_certificate(accuracy=accuracy).model_dump_json()
        },
        StageName.EVALUATE_POLICY: {POLICY_EVALUATION_FILE: policy_evaluation().model_dump_json()},
    }
    return made.get(stage, {"config.json": "{}"})


def _write_manifest(stage: StageName, folder: Path) -> None:
    entries = file_entries(folder)
    lineage = (LineageEntry(name="pairs", digest=content_digest(entries), origin="filter_dataset 3f3f3f3f3f3f"),)
    manifest = Manifest(stage=stage, key=KEY, files=entries, lineage=lineage, created_at="2026-11-21T11:30:00+00:00")
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json(), encoding="utf-8")


def _spec(work: Path, title: str, inputs: list[StageInput]) -> StageSpec:
    return StageSpec(
        stage=StageName.WRITE_REPORT,
        key=KEY,
        config=WriteReportConfig(title=title),
        inputs=tuple(inputs),
        seed=5,
        profile=GpuProfile(name="cpu", num_gpus=0, precision="float32"),
        batch=BatchPlan(
            global_batch_size=1, per_device_batch_size=1, num_processes=1, gradient_accumulation_steps=1
        ),
        required=RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False),
        runtime="process",
        work_path=str(work),
    )  # fmt: skip
