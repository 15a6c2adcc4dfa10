"""check_system: what is there and what is wanted, before anything is spent."""

import logging
import os
import shutil
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from containers.contracts.configs.suites import SuiteFile
from containers.contracts.hardware import GpuProfile
from containers.contracts.names import StageName
from containers.contracts.records import CheckFinding, StageRecord
from containers.host.environment_block import without_secrets
from containers.launch.docker.state import DockerState, ImageState, read_docker, read_image
from containers.launch.memory_limit import machine_memory
from containers.launch.preflight import (
    cpu_finding,
    disk_finding,
    docker_findings,
    memlock_finding,
    memory_finding,
    network_finding,
    shm_finding,
)
from tasks.checks.hardware import gpu_rows, variable_rows
from tasks.checks.services import mlflow_finding, package_findings, service_finding, source_finding, vllm_finding
from tasks.display import current_display
from tasks.gates.notice import block_finding
from tasks.pages.markdown import system_check_markdown
from tasks.pipeline.inputs import REFERENCE_KEY
from tasks.pipeline.reward_models import probe_reward_model
from tasks.prefect_sync.artifacts import show_markdown
from tasks.run.runtime import NOT_ASKED, Runtime, judge_runtime, present_stages_digest
from tasks.run.state import PipelineRun
from tasks.sources.resolve import (
    DatasetSource,
    ModelSource,
    Probe,
    hub_token,
    probe_dataset,
    probe_file,
    probe_model,
)
from tasks.sources.suites import probe_suite

logger = logging.getLogger(__name__)

_Check = Callable[[], Iterable[CheckFinding]]
_NAME_WIDTH, _MIN_CELL_WIDTH = 18, 16


@dataclass(frozen=True)
class CheckRequest:
    """What the run will need. It holds no secret: the hub token is read where it is used.

    Attributes:
        disk_needed_bytes: estimate of what the run writes below output_dir.
        memory_needed_bytes: estimate of the largest stage; 0 where nobody estimated.
        model: None where the run builds its own.
        reward_model: None where the run trains its own.
        reference_reward_model: the one that judges labels; None where none does.
        prefect_api_url, mlflow_tracking_uri: None where the run starts a server itself.
        token_present: whether hub requests may use the user's token.
        needs_vllm: whether vLLM writes the policy's completions.
        notify_blocks: gate and block in Prefect, where a gate tells people that it waits.
    """

    profile: GpuProfile
    runtime: Literal["auto", "docker", "process"]
    image: str
    output_dir: Path
    disk_needed_bytes: int
    model: ModelSource | None
    dataset: DatasetSource
    reward_model: ModelSource | None = None
    reference_reward_model: ModelSource | None = None
    suites: tuple[SuiteFile, ...] = ()
    tokenizer_file: Path | None = None
    prefect_api_url: str | None = None
    mlflow_tracking_uri: str | None = None
    token_present: bool = False
    memory_needed_bytes: int = 0
    notify_blocks: tuple[tuple[str, str], ...] = ()
    needs_vllm: bool = False


class SystemCheckError(Exception):
    """Something that the run needs is missing; nothing was spent."""


@task(name="check_system", task_run_name="check_system", cache_policy=NO_CACHE, persist_result=False)
def check_system(run: PipelineRun, request: CheckRequest) -> tuple[CheckFinding, ...]:
    """Every row of the check, in Prefect, MLflow and the report.

    Raises:
        SystemCheckError: with what was found, what is wanted and what to do for each row that hinders the run.
    """
    started = time.monotonic()
    run.checks = run_checks(request)
    hindrances = failures(run.checks)
    mlflow_run = run.tracking.start_stage(StageName.CHECK_SYSTEM, attempt=1)
    columns = list(CheckFinding.model_fields)
    rows = [[getattr(row, name) for name in columns] for row in run.checks]
    run.tracking.log_table(mlflow_run, columns, rows, "system_check.json")
    run.tracking.finish_stage(mlflow_run, succeeded=not hindrances)
    show_markdown("check-system", system_check_markdown(run.checks), description="Found, wanted, what to do")
    record = StageRecord(
        stage=StageName.CHECK_SYSTEM,
        status="failed" if hindrances else "ran",
        duration_s=time.monotonic() - started,
        attempts=1,
        message=f"{len(hindrances)} of {len(run.checks)} checks failed" if hindrances else "",
        mlflow_run_id=mlflow_run,
    )
    run.remember(record)
    current_display().stage_ended(record)
    if hindrances:
        raise SystemCheckError(refusal(hindrances))
    return run.checks


def run_checks(request: CheckRequest) -> tuple[CheckFinding, ...]:
    """One row per question; a check that breaks is a failed row.

    They run side by side, so that servers and tools that hang cost seconds and not minutes.
    """
    docker, image = NOT_ASKED, ImageState(name=request.image)
    if request.runtime != "process":
        docker, image = read_docker(), read_image(request.image)
    stages_digest = present_stages_digest()
    choice = judge_runtime(request.runtime, docker, image, stages_digest=stages_digest)
    chosen = CheckFinding(
        name="runtime",
        found=choice.reason,
        wanted=request.runtime,
        verdict="warning" if choice.advice else "ok",
        advice=choice.advice,
    )
    runtime_check: tuple[str, _Check] = ("stage packages", package_findings)
    if choice.runtime == "docker":
        profile = request.profile
        runtime_check = ("Docker", lambda: docker_findings(docker, image, profile, stages_digest=stages_digest))
    checks = [
        runtime_check,
        *([("vLLM", lambda: (vllm_finding(choice.runtime, image),))] if request.needs_vllm else []),
        *_host_checks(request, choice.runtime, docker),
        ("Prefect", lambda: (service_finding("Prefect", request.prefect_api_url),)),
        ("MLflow", lambda: (mlflow_finding(request.mlflow_tracking_uri),)),
        *(_block_check(gate, block, request.prefect_api_url) for gate, block in request.notify_blocks),
        *_source_checks(request),
    ]
    with ThreadPoolExecutor(max_workers=len(checks), thread_name_prefix="check") as pool:
        rows = pool.map(lambda check: _guarded(*check), checks)
        return (chosen, *(_masked(row) for found in rows for row in found))


def _masked(row: CheckFinding) -> CheckFinding:
    """The row without secrets: it goes to Prefect and MLflow, and may quote a line of a file."""
    return row.model_copy(update={"found": without_secrets(row.found), "advice": without_secrets(row.advice)})


def failures(findings: Iterable[CheckFinding]) -> tuple[CheckFinding, ...]:
    """The rows that must stop a run."""
    return tuple(finding for finding in findings if finding.verdict == "failure")


def refusal(hindrances: Sequence[CheckFinding]) -> str:
    """One line per row that hinders the run; what was found may bring its own full stop along."""
    lines = [
        f"  {row.name}: found {row.found.removesuffix('.')}, wanted {row.wanted}. {row.advice}".rstrip()
        for row in hindrances
    ]
    return "\n".join(("The run does not start; nothing was spent.", *lines))


def table(findings: Sequence[CheckFinding], *, width: int | None = None) -> str:
    """The rows as plain text: verdict, name, found, wanted; what to do stands below.

    Args:
        width: columns of the terminal; None asks it.
    """
    columns = width or shutil.get_terminal_size().columns
    rest = max(2 * _MIN_CELL_WIDTH, columns - _NAME_WIDTH - len("warning") - 6)
    found_width = max(_MIN_CELL_WIDTH, rest * 3 // 5)
    wanted_width = max(_MIN_CELL_WIDTH, rest - found_width)
    lines = _cells(("", "check", "found", "wanted"), found_width, wanted_width)
    for finding in findings:
        verdict = finding.verdict.upper() if finding.verdict == "failure" else finding.verdict
        lines += _cells((verdict, finding.name, finding.found, finding.wanted), found_width, wanted_width)
        if finding.advice and finding.verdict != "ok":
            indent = " " * (len("warning") + 2)
            lines += textwrap.wrap(
                finding.advice, columns, initial_indent=f"{indent}→ ", subsequent_indent=f"{indent}  "
            )
    return "\n".join(lines)


def _host_checks(request: CheckRequest, runtime: Runtime, docker: DockerState) -> list[tuple[str, _Check]]:
    profile = request.profile
    machine_bytes, can_limit = machine_memory(docker.memory_bytes), docker.limits_memory
    shm = partial(shm_finding, profile, runtime=runtime, machine_bytes=machine_bytes, can_limit=can_limit)
    memory = partial(memory_finding, profile, runtime=runtime, machine_bytes=machine_bytes, can_limit=can_limit)
    return [
        ("GPUs", lambda: gpu_rows(profile, runtime, store_dir=request.output_dir)),
        ("shared memory", lambda: (shm(),)),
        ("ulimit memlock", lambda: (memlock_finding(profile, runtime=runtime),)),
        ("memory", lambda: (memory(needed_bytes=request.memory_needed_bytes),)),
        ("CPUs", lambda: (cpu_finding(profile),)),
        ("variables", lambda: variable_rows(os.environ)),
        ("disk", lambda: (disk_finding(request.output_dir, needed_bytes=request.disk_needed_bytes),)),
        ("network interface", lambda: (network_finding(profile, runtime=runtime),)),
    ]


def _block_check(gate: str, block: str, prefect_api_url: str | None) -> tuple[str, _Check]:
    return f"gate {gate}", lambda: (block_finding(gate, block, prefect_api_url),)


def _source_checks(request: CheckRequest) -> list[tuple[str, _Check]]:
    checks: list[tuple[str, _Check]] = [("dataset", lambda: (_dataset(request),))]
    if request.model is not None:
        model = request.model
        checks.insert(0, ("base model", lambda: (_model(model, request),)))
    if request.reward_model is not None:
        checks.append(_reward_model_check(request.reward_model, request, name="reward model", probe=probe_reward_model))
    if request.reference_reward_model is not None:
        reference = request.reference_reward_model
        probe = partial(probe_model, key=REFERENCE_KEY)
        checks.append(_reward_model_check(reference, request, name="reference reward model", probe=probe))
    if request.tokenizer_file is not None:
        checks.append(_file_check("tokenizer_file", request.tokenizer_file, probe_file))
    return checks + [_suite_check(suite, request) for suite in request.suites]


def _suite_check(suite: SuiteFile, request: CheckRequest) -> tuple[str, _Check]:
    name = f"suite {suite.name}"
    return name, lambda: (source_finding(name, "data files", lambda: probe_suite(suite, token=_token(request))),)


def _model(model: ModelSource, request: CheckRequest) -> CheckFinding:
    wanted = "safetensors, tokenizer, chat template"
    return source_finding("base model", wanted, lambda: probe_model(model, token=_token(request)))


def _reward_model_check(
    model: ModelSource, request: CheckRequest, *, name: str, probe: Callable[..., Probe]
) -> tuple[str, _Check]:
    wanted = "safetensors with a score head, tokenizer, chat template"
    return name, lambda: (source_finding(name, wanted, lambda: probe(model, token=_token(request))),)


def _dataset(request: CheckRequest) -> CheckFinding:
    return source_finding("dataset", "data files", lambda: probe_dataset(request.dataset, token=_token(request)))


def _token(request: CheckRequest) -> str | None:
    return hub_token() if request.token_present else None


def _file_check(name: str, path: Path, probe: Callable[..., Probe]) -> tuple[str, _Check]:
    return name, lambda: (source_finding(name, "a readable file", lambda: probe(path, key=name)),)


def _guarded(name: str, check: _Check) -> tuple[CheckFinding, ...]:
    """The check's rows; a check that breaks must neither hide the others nor pass for a good one."""
    try:
        return tuple(check())
    except Exception as error:
        logger.exception("The check of %s broke", name)
        return (
            CheckFinding(
                name=name,
                found=f"the check itself broke: {type(error).__name__}: {error}",
                wanted="an answer",
                verdict="failure",
                advice="This is a defect of rlhf-flows: report it with the log above.",
            ),
        )


def _cells(cells: tuple[str, str, str, str], found_width: int, wanted_width: int) -> list[str]:
    """One row as lines; long cells go on in the next line of their column."""
    widths = (len("warning"), _NAME_WIDTH, found_width, wanted_width)
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    height = max(len(lines) for lines in wrapped)
    padded = [lines + [""] * (height - len(lines)) for lines in wrapped]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    ]
