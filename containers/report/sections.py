"""The sections of the page as rows of text. Foreign text stays as it is: the template escapes it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.hardware import ContractFinding, MeasuredContract
from containers.contracts.names import StageName
from containers.contracts.records import Funnel, PipelineRecord, StageRecord, TrainingInfo
from containers.formatting import MISSING, duration, humanize, moment, number, percent, short_digest, size
from containers.report.inputs import ReportInputs

_MAX_GROUPS = 12
_MAX_LISTED_FILES = 12


@dataclass(frozen=True)
class Breakdown:
    """Rows dropped by domain or language, most first."""

    title: str
    rows: tuple[tuple[str, int, str], ...]
    num_left_out: int = 0


@dataclass(frozen=True)
class Machine:
    """The machine of some stages and what they found on it; stages with equal findings share one."""

    stages: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    attention: tuple[ContractFinding, ...]
    fulfilled: tuple[ContractFinding, ...]


@dataclass(frozen=True)
class Descent:
    """One artifact: what it is and what it was made from."""

    name: str
    digest: str
    inputs: tuple[tuple[str, str, str], ...]
    path: str = ""
    files: tuple[tuple[str, str], ...] = ()
    num_files: int = 0
    total_size: str = ""


def safe_url(url: str) -> str:
    """`url` if it leads to http or https; empty for anything else, such as `javascript:`."""
    return url if url.startswith(("http://", "https://")) else ""


def mlflow_run_url(pipeline_url: str, run_id: str) -> str:
    """Page of a stage's MLflow run, beside that of its pipeline; empty where either is unknown.

    Example: `http://host/#/experiments/1/runs/0f3c` and `77aa` give `http://host/#/experiments/1/runs/77aa`.
    """
    runs, found, _ = safe_url(pipeline_url).rpartition("/runs/")
    return f"{runs}{found}{run_id}" if found and run_id.isalnum() else ""


def ui_command(pipeline: PipelineRecord) -> str:
    """The command that opens the links of the page again; empty where no link leads to this machine."""
    local = ("http://127.0.0.1:", "http://localhost:")
    if not any(url.startswith(local) for url in (pipeline.mlflow_url, pipeline.prefect_url)):
        return ""
    program, run, options = pipeline.command.partition(" run ")
    return f"{program} ui {options}" if run else "rlhf ui"


def stage_duration(record: StageRecord) -> str:
    """How long the stage's last attempt took; a dash where it did not run, or is still writing this page."""
    timed = record.status in ("ran", "failed") and record.stage is not StageName.WRITE_REPORT
    return duration(record.duration_s) if timed else MISSING


def stage_note(inputs: ReportInputs, record: StageRecord) -> str:
    """Return a note beside the status: when a reused artifact was made, from which step an attempt resumed.

    The reason why a stage failed or was skipped is its message, not its note.
    """
    if record.status == "reused":
        manifest = inputs.manifests.get(record.stage)
        changes = "; ".join(fallback.change for fallback in manifest.ladder) if manifest else ""
        made = f"made {moment(manifest.created_at)}" if manifest else record.message
        return f"{made}, as planned but for: {changes}" if changes else made
    info = inputs.training.get(record.stage) if record.status == "ran" else None
    notes = [
        f"resumed from step {info.resumed_from_step:,}" if info and info.resumed_from_step is not None else "",
        "the duration is that of the last attempt" if record.attempts > 1 else "",
        record.message if record.status == "ran" else "",
    ]
    return "; ".join(note for note in notes if note)


def breakdowns(funnel: Funnel) -> tuple[Breakdown, ...]:
    """Dropped rows by domain, language, strength and (for a mixture) source, each with its most frequent reason."""
    kinds = {
        "Domain": [(step.reason, step.dropped_by_domain) for step in funnel.steps],
        "Language": [(step.reason, step.dropped_by_language) for step in funnel.steps],
        "Strength": [(step.reason, step.dropped_by_strength) for step in funnel.steps],
    }
    if len(funnel.read_by_source) > 1:
        kinds["Source"] = [(step.reason, step.dropped_by_source) for step in funnel.steps]
    found = (_breakdown(title, counts) for title, counts in kinds.items())
    return tuple(item for item in found if item.rows)


def data_findings(funnel: Funnel) -> tuple[str, ...]:
    """The findings about the data besides the counts, a sentence each."""
    said = [
        f"{item.source}: the label agrees with the scores beside it on {item.num_agreeing:,} of "
        f"{item.num_judged:,} rows."
        for item in funnel.polarity
    ]
    said += [
        f"{item.source}: the label agrees with the reference reward model {item.model} on {percent(item.agreement)} of "
        f"{item.num_judged:,} pairs ({percent(item.low)} to {percent(item.high)})"
        f"{', which says nothing about the sign of the labels' if item.says_nothing else ''}."
        for item in funnel.reference
    ]
    if funnel.num_near_duplicates is not None:
        said.append(f"{funnel.num_near_duplicates:,} rows nearly repeat another one (near_duplicates.jsonl).")
    if funnel.num_similar_prompts is not None:
        said.append(f"{funnel.num_similar_prompts:,} prompts are like another prompt; every split keeps them together.")
    said += [
        f"Suite {item.suite}: {item.num_items_found:,} of its {item.num_items:,} prompts are in "
        f"{item.num_rows:,} rows (contaminated.jsonl)."
        for item in funnel.contamination
    ]
    return tuple(said)


def unaccounted_rows(funnel: Funnel) -> int:
    """Rows read that are neither dropped nor used nor set aside; 0 when the funnel adds up."""
    used = funnel.train_pairs + funnel.validation_pairs + funnel.pairs_set_aside_for_policy
    return funnel.rows_read - used - sum(step.dropped for step in funnel.steps)


def training_facts(info: TrainingInfo) -> tuple[tuple[str, str], ...]:
    """How a model was trained, as label and value."""
    steps = f"{info.num_steps:,}" + (
        "" if info.num_steps == info.planned_steps else f" of {info.planned_steps:,} planned"
    )
    resumed = "" if info.resumed_from_step is None else f", resumed from step {info.resumed_from_step:,}"
    name = info.best_metric_name.removeprefix("eval_").replace("_", " ")
    best = f"held-out {name} {number(info.best_metric)} at step {number(info.best_step)}"
    share = percent(info.trainable_parameters / info.total_parameters)
    facts = (
        ("Algorithm", info.algorithm),
        ("Optimizer steps", f"{steps}{resumed}"),
        ("Global batch size", f"{info.global_batch_size:,}"),
        ("Examples", f"{info.num_examples:,}"),
        ("Left out as too long", f"{info.examples_left_out:,}"),
        ("Left out for a token without a row", f"{info.examples_without_row:,}" if info.examples_without_row else ""),
        ("Parameters trained", f"{info.trainable_parameters:,} of {info.total_parameters:,} ({share})"),
        ("Best checkpoint", best if info.best_metric is not None else ""),
        ("Training time", duration(info.duration_s)),
        ("Peak memory", size(info.peak_memory_bytes) if info.peak_memory_bytes else ""),
        ("Device", " · ".join(part for part in (info.device, info.precision) if part)),
    )
    return tuple((label, value) for label, value in facts if value)


def machines(inputs: ReportInputs) -> tuple[Machine, ...]:
    """What the stages measured before they started; equal findings are shown once."""
    groups: dict[str, list[str]] = {}
    for stage, measured in inputs.measured.items():
        groups.setdefault(_machine_key(measured), []).append(stage)
    return tuple(_machine(tuple(stages), inputs.measured[stages[0]]) for stages in groups.values())


def versions(inputs: ReportInputs) -> tuple[tuple[str, str], ...]:
    """Package versions; where stages differ, each version is named with its stages."""
    found: dict[str, dict[str, list[str]]] = {}
    for stage, measured in inputs.measured.items():
        for package, version in (("python", measured.python), *measured.packages):
            found.setdefault(package, {}).setdefault(version, []).append(stage)
    for training_stage, info in inputs.training.items():
        for package, version in info.versions:
            if training_stage not in inputs.measured:
                found.setdefault(package, {}).setdefault(version, []).append(training_stage)
    return tuple((package, _version_text(by_version)) for package, by_version in found.items())


def descents(inputs: ReportInputs) -> tuple[Descent, ...]:
    """Every artifact in the order of the pipeline, with its digest, the inputs it was made from, and its files."""
    found = []
    for stage in StageName:
        record, manifest = inputs.stage(stage), inputs.manifests.get(stage)
        if record is None or not (manifest or record.digest):
            continue
        files = sorted(manifest.files, key=lambda entry: -entry.size_bytes) if manifest else []
        lineage = manifest.lineage if manifest else ()
        found.append(
            Descent(
                name=stage,
                digest=short_digest(record.digest),
                inputs=tuple((entry.name, short_digest(entry.digest), entry.origin) for entry in lineage),
                path=record.path,
                files=tuple((entry.path, size(entry.size_bytes)) for entry in files[:_MAX_LISTED_FILES]),
                num_files=len(files),
                total_size=size(sum(entry.size_bytes for entry in files)) if files else "",
            )
        )
    return tuple(found)


def runtime_text(record: StageRecord) -> str:
    """`docker 1f2e…` (the image) or `process`; a dash where the stage did not run."""
    image = short_digest(record.image_digest).removeprefix("sha256:")
    return " ".join(part for part in (record.runtime, image) if part) or MISSING


def _breakdown(title: str, steps: Sequence[tuple[str, tuple[tuple[str, int], ...]]]) -> Breakdown:
    counts: dict[str, dict[str, int]] = {}
    for reason, groups in steps:
        for group, dropped in groups:
            if dropped:
                by_reason = counts.setdefault(group, {})
                by_reason[reason] = by_reason.get(reason, 0) + dropped
    rows = sorted(
        ((group, sum(found.values()), _top(found)) for group, found in counts.items()), key=lambda row: -row[1]
    )
    return Breakdown(title, tuple(rows[:_MAX_GROUPS]), max(0, len(rows) - _MAX_GROUPS))


def _top(by_reason: dict[str, int]) -> str:
    reason = max(by_reason, key=lambda name: by_reason[name])
    return f"{humanize(reason).lower()} ({by_reason[reason]:,})"


def _machine_key(measured: MeasuredContract) -> str:
    shared = measured.model_dump(mode="json", exclude={"hostname", "packages", "python"})
    return json.dumps(shared, sort_keys=True)


def _machine(stages: tuple[str, ...], measured: MeasuredContract) -> Machine:
    facts = (
        ("Runtime", measured.runtime),
        ("Image", short_digest(measured.image_digest)),
        ("CPU", f"{measured.cpu or 'unknown'}, {measured.num_cpus} usable"),
        ("Memory", size(measured.memory_bytes)),
        ("GPUs", "; ".join(measured.gpus) or "none"),
        ("User id", f"{measured.user_id}" + (" (root)" if measured.user_id == 0 else "")),
        ("Capabilities", _capabilities(measured.capabilities)),
        ("No new privileges", "yes" if measured.no_new_privileges else "no"),
    )
    return Machine(
        stages=stages,
        facts=tuple((label, value) for label, value in facts if value),
        attention=tuple(finding for finding in measured.findings if finding.verdict != "ok"),
        fulfilled=tuple(finding for finding in measured.findings if finding.verdict == "ok"),
    )


def _capabilities(hexadecimal: str) -> str:
    return "none" if hexadecimal and not hexadecimal.strip("0") else hexadecimal


def _version_text(by_version: dict[str, list[str]]) -> str:
    if len(by_version) == 1:
        return next(iter(by_version))
    return "; ".join(f"{version} ({', '.join(stages)})" for version, stages in by_version.items())
