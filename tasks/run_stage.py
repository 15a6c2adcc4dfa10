"""The only road through the wall: reuse the stage's artifact, or start its program and publish what it made."""

import errno
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from containers.contracts.hardware import GIB, BatchPlan, RequiredContract
from containers.contracts.names import EVENTS_FILE, MEASURED_FILE, SPEC_FILE, StageName
from containers.contracts.outcome import FailureKind, StageFailure
from containers.contracts.records import StageRecord
from containers.contracts.spec import ArtifactRef, StageInput, StageSpec
from containers.contracts.stage_configs import StageConfig
from containers.digests import read_manifest
from containers.launch.collect import CollectError, find_artifact, publish, read_outcome
from containers.launch.environment import stage_environment
from containers.launch.failure import classify
from containers.launch.runtime import Launch, LaunchError, StageExit
from tasks.display import current_display
from tasks.event_feed import EventFeed, MetricsDelivery
from tasks.pipeline_run import PipelineRun
from tasks.stage_key import SINGLE_BATCH, stage_key, stage_profile

_LAST_WORDS = 8


class StageFailedError(Exception):
    """A stage failed; `failure` says how, and its message what to do."""

    def __init__(self, failure: StageFailure, *, log: Path) -> None:
        self.failure = failure
        told = [f"{failure.stage} failed ({failure.kind}): {failure.message}"]
        if failure.kind is FailureKind.UNEXPECTED:
            told += ["Its last words:", *(f"  {line}" for line in failure.evidence[-_LAST_WORDS:])]
        elif "What to change" not in failure.message:
            told.append(f"What to change: {failure.kind.change_before_retry}.")
        super().__init__("\n".join([*told, f"Full log: {log}"]))


def run_stage(
    run: PipelineRun, config: StageConfig, inputs: Sequence[StageInput], *, batch: BatchPlan = SINGLE_BATCH
) -> ArtifactRef:
    """The verified artifact of this work: reused where it exists, made where it does not.

    Raises:
        StageFailedError: the stage failed; nothing of it was published.
    """
    stage = StageName(config.stage)
    profile = stage_profile(run.settings.profile, stage)
    key = stage_key(
        config, seed=run.settings.seed, inputs=inputs, code_digest=run.code.digest, profile=profile, batch=batch
    )
    with _sole_worker(run, stage, key):
        return _reused_or_made(run, config, inputs, key=key, batch=batch)


@contextmanager
def _sole_worker(run: PipelineRun, stage: StageName, key: str) -> Iterator[None]:
    """Hold the work folder of this key; another run that needs the same work waits, and then reuses it.

    The lock is the kernel's (flock): it is free the moment that its holder dies.
    """
    folder = run.work_folder(stage, key)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{key}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        current_display().say(f"{stage}: another run is at the same work; waiting for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _reused_or_made(
    run: PipelineRun, config: StageConfig, inputs: Sequence[StageInput], *, key: str, batch: BatchPlan
) -> ArtifactRef:
    stage = StageName(config.stage)
    found = find_artifact(run.artifacts, stage=stage, key=key)
    if found.damage:
        _logger().warning("%s is damaged and was set aside; the stage runs again. %s", stage, found.damage)
        current_display().say(f"{stage}: {found.damage} Running it again.")
    if found.artifact is not None:
        return _reuse(run, found.artifact)
    spec = _spec(run, config, inputs, key=key, batch=batch)
    try:
        return _make(run, spec)
    except (OSError, LaunchError, CollectError) as error:
        failure = _failure_outside(run, spec, error)
        log = run.spec_folder(stage, key, attempt=spec.attempt) / "stage.log"
        raise _failed(run, spec, failure, mlflow_run="", log=log) from error


def _failure_outside(run: PipelineRun, spec: StageSpec, error: Exception) -> StageFailure:
    """What an error of the orchestrator's own side means: the stage was not started, or its output not taken."""
    kind = getattr(error, "kind", FailureKind.UNEXPECTED)
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        kind = FailureKind.DISK_FULL
        free = shutil.disk_usage(run.settings.output_dir).free
        message = f"{run.settings.output_dir} has {free / 1024**2:,.0f} MiB free, which was not enough: {error}"
    return StageFailure(stage=spec.stage, key=spec.key, kind=kind, message=message)


def _spec(
    run: PipelineRun, config: StageConfig, inputs: Sequence[StageInput], *, key: str, batch: BatchPlan
) -> StageSpec:
    stage = StageName(config.stage)
    profile = stage_profile(run.settings.profile, stage)
    return StageSpec(
        stage=stage,
        key=key,
        config=config,
        inputs=tuple(inputs),
        seed=run.settings.seed,
        profile=profile,
        batch=batch,
        required=RequiredContract(
            shm_size_bytes=int(profile.shm_size_gib * GIB),
            memlock_bytes=profile.memlock_bytes,
            stack_bytes=profile.stack_bytes,
            num_gpus=profile.num_gpus,
            environment=stage_environment(profile, seed=run.settings.seed),
            stages_digest=run.code.stages_digest,
            enforced=run.runtime.name == "docker",
        ),
        runtime=run.runtime.name,
        image_digest=run.code.image_digest,
        run_id=run.run_id,
        attempt=run.next_attempt(stage, key),
        timeout_s=run.settings.timeouts_s.get(stage),
        work_path=str(run.work_folder(stage, key)),
    )


def _reuse(run: PipelineRun, artifact: ArtifactRef) -> ArtifactRef:
    manifest = read_manifest(Path(artifact.path))
    _logger().info("%s: reused %s, verified (%d files)", artifact.stage, artifact.path, len(manifest.files))
    mlflow_run = run.tracking.start_stage(artifact.stage, attempt=0, tags={"rlhf.reused": "true"})
    run.tracking.log_final_metrics(mlflow_run, manifest.metrics)
    run.tracking.log_lineage(mlflow_run, manifest.lineage, output_digest=artifact.digest)
    run.tracking.finish_stage(mlflow_run, succeeded=True)
    _end(
        run,
        StageRecord(
            stage=artifact.stage,
            status="reused",
            key=artifact.key,
            digest=artifact.digest,
            path=artifact.path,
            metrics=manifest.metrics,
            runtime=run.runtime.name,
            image_digest=run.code.image_digest,
            mlflow_run_id=mlflow_run,
            message=f"made {manifest.created_at}",
        ),
    )
    return artifact


def _make(run: PipelineRun, spec: StageSpec) -> ArtifactRef:
    spec_folder = run.spec_folder(spec.stage, spec.key, attempt=spec.attempt)
    work_folder = run.work_folder(spec.stage, spec.key)
    for folder in (spec_folder, work_folder):
        folder.mkdir(parents=True, exist_ok=True)
    mlflow_run = run.tracking.start_stage(spec.stage, attempt=spec.attempt, tags={"rlhf.key": spec.key})
    run.tracking.log_spec(mlflow_run, spec)
    current_display().stage_started(spec.stage, f"{run.runtime.name}, attempt {spec.attempt}")
    stage_exit = _launch(run, spec, spec_folder=spec_folder, work_folder=work_folder, mlflow_run=mlflow_run)
    failure = classify(spec, stage_exit, read_outcome(work_folder))
    for name in (EVENTS_FILE, MEASURED_FILE):
        run.tracking.log_file(mlflow_run, work_folder / name)
    for name in (SPEC_FILE, "stage.log"):
        run.tracking.log_file(mlflow_run, spec_folder / name)
    if failure is not None:
        raise _failed(run, spec, failure, mlflow_run=mlflow_run, log=spec_folder / "stage.log")
    artifact = publish(work_folder, run.artifacts, stage=spec.stage, key=spec.key)
    manifest = read_manifest(Path(artifact.path))
    run.tracking.log_final_metrics(mlflow_run, manifest.metrics)
    run.tracking.log_artifact_folder(mlflow_run, Path(artifact.path))
    run.tracking.log_lineage(mlflow_run, manifest.lineage, output_digest=artifact.digest)
    run.tracking.finish_stage(mlflow_run, succeeded=True)
    _end(
        run,
        StageRecord(
            stage=spec.stage,
            status="ran",
            key=spec.key,
            digest=artifact.digest,
            path=artifact.path,
            runtime=spec.runtime,
            image_digest=spec.image_digest,
            duration_s=stage_exit.duration_s,
            attempts=spec.attempt,
            metrics=manifest.metrics,
            mlflow_run_id=mlflow_run,
        ),
    )
    return artifact


def _launch(run: PipelineRun, spec: StageSpec, *, spec_folder: Path, work_folder: Path, mlflow_run: str) -> StageExit:
    """Run the program to its end, with its log in Prefect and its curves in MLflow while it runs."""
    logger, display = _logger(), current_display()
    delivery = MetricsDelivery(run.tracking, mlflow_run)
    feed = EventFeed(
        work_folder / EVENTS_FILE,
        on_metrics=delivery.add,
        on_progress=lambda done, total, text: display.stage_progress(spec.stage, done, total, text),
        on_note=logger.info,
        from_end=True,  # what an earlier attempt wrote is delivered by the reconciliation
    )
    try:
        stage_exit = run.runtime.run(
            Launch(
                spec=spec,
                spec_folder=spec_folder,
                work_folder=work_folder,
                image=run.image,
                labels={"rlhf.run_name": run.settings.name},
                on_line=logger.info,
                should_stop=lambda: False,
                on_tick=feed.poll,
            )
        )
        feed.poll()
        return stage_exit
    finally:
        delivery.close()
        delivery.reconcile(work_folder / EVENTS_FILE)


def _failed(
    run: PipelineRun, spec: StageSpec, failure: StageFailure, *, mlflow_run: str, log: Path
) -> StageFailedError:
    if mlflow_run:
        run.tracking.log_text(mlflow_run, "\n".join((failure.message, "", *failure.evidence)), "failure.txt")
        run.tracking.finish_stage(mlflow_run, succeeded=False)
    _end(
        run,
        StageRecord(
            stage=spec.stage,
            status="failed",
            key=spec.key,
            runtime=spec.runtime,
            image_digest=spec.image_digest,
            duration_s=failure.duration_s,
            attempts=spec.attempt,
            message=f"{failure.kind}: {failure.message}",
            mlflow_run_id=mlflow_run,
        ),
    )
    return StageFailedError(failure, log=log)


def _end(run: PipelineRun, record: StageRecord) -> None:
    run.remember(record)
    current_display().stage_ended(record)


def _logger() -> "logging.Logger | logging.LoggerAdapter[logging.Logger]":
    """Prefect's run logger inside a run, the module's own outside."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(__name__)
