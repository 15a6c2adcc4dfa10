"""The flow of a comparison: every arm in a flow run of its own, and then their policies against each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.context import FlowRunContext

from containers.arms.page import ArmsReport, SharedResult, arms_page
from containers.arms.records import PolicyComparison
from containers.contracts.digests import write_atomically
from containers.contracts.names import REPORT_HTML_FILE, REPORT_MARKDOWN_FILE, StageName
from containers.contracts.outcome import FailureKind
from containers.document.html import page_html
from containers.document.markdown import page_markdown
from flows.rlhf import rlhf
from flows.run_flow import how_it_ends
from tasks.arms.load import Arm, Comparison, load_comparison
from tasks.arms.results import ArmResult, failed_key, newest_record
from tasks.compare_policies import compare_policies
from tasks.config.gates import GateClosedError, PersonAwaitedError
from tasks.display import current_display
from tasks.pipeline.failure import StageFailedError
from tasks.pipeline.lookup import missing_keys
from tasks.pipeline.open_run import open_run
from tasks.pipeline.standing_report import last_record, standing_report
from tasks.prefect_sync.artifacts import gpu_hours_shown, show_markdown
from tasks.prefect_sync.cancellation import RunCancelledError
from tasks.run.budget import Budget, gpu_hours, limited, read_costs
from tasks.run.state import PipelineRun
from tasks.sources.errors import SourceError


class ArmsFailedError(Exception):
    """Some arms did not come to their end, or their policies could not be compared; the page was written."""


def _flow_run_name() -> str:
    context = FlowRunContext.get()
    start_from = str((context.parameters or {}).get("start_from", "")) if context else ""
    return f"arms {Path(start_from).stem}"


@flow(name="rlhf-arms", flow_run_name=_flow_run_name, validate_parameters=False)
def rlhf_arms(start_from: str, more_settings: list[str] | None = None, *, profile: str = "", command: str = "") -> Path:
    """Run every arm of a comparison, and compare their policies by the judges of the runs.

    Arms that are finished are not run again; a stage that several arms share is made once.

    Args:
        start_from: the comparison: a file like configs/arms/sums.yaml.
        more_settings: keys of all arms, as `section.key=value`.
        profile: GPU profile of all arms; empty: that of the run.
        command: how to repeat it; for the page.

    Returns:
        Path of the page.

    Raises:
        ConfigError: the comparison has mistakes; nothing was started.
        ArmsFailedError: some arms failed; the page shows the others.
        PersonAwaitedError: a person must decide something about an arm; after that, start it again.
        RunCancelledError: a user cancelled it in Prefect.
    """
    comparison = load_comparison(Path(start_from), overrides=more_settings or (), profile=profile or None)
    with open_run(comparison.own_run, command=command, config_yaml="") as run:
        with _within_budget(comparison):
            results = list(_all_arms(comparison, command=command))
        compared, problem = _compared(run, comparison, results)
        page = _write_page(run, comparison, results, compared, problem)
        _raise_what_is_left(results, problem)
        return page


@contextmanager
def _within_budget(comparison: Comparison) -> Iterator[None]:
    hours, folder = comparison.file.max_gpu_hours, comparison.file.folder.resolve()
    budget = None if hours is None else Budget(hours, folder, key="max_gpu_hours", on_change=gpu_hours_shown())
    with limited(budget):
        yield


def _all_arms(comparison: Comparison, *, command: str) -> Iterator[ArmResult]:
    """Run each arm. One that fails does not stop the others; what failed is not tried again for another arm.

    Raises:
        RunCancelledError, KeyboardInterrupt, EndedBySignal: a user stopped it.
    """
    failed: dict[tuple[StageName, str], str] = {}
    spent = ""
    for number, arm in enumerate(comparison.arms, start=1):
        say = current_display().say
        say(f"\nArm {number} of {len(comparison.arms)}: {arm.label}")
        shared = next((key for key in missing_keys(arm.config) if key in failed), None)
        if spent:
            result = ArmResult(arm, None, f"not started: {spent}")
        elif shared is not None:
            result = ArmResult(arm, None, f"not started: it needs the {shared[0]} that failed for {failed[shared]}")
        else:
            result = _one_arm(arm, command=command)
        if result.problem:
            say(f"{arm.label}: {result.problem}")
        if (key := failed_key(result.record)) is not None:
            failed[key] = arm.label
        if result.is_spent:
            spent = "the GPU hours of all arms are used up"
        yield result


def _one_arm(arm: Arm, *, command: str) -> ArmResult:
    """Run that arm to its end, or say why it did not come there; a finished one starts nothing."""
    standing = standing_report(arm.loaded)
    if standing is not None:
        for stage in standing.stages:
            current_display().stage_ended(stage)
        return ArmResult(arm, standing)
    before = last_record(arm.config.output_dir)
    ended = how_it_ends(partial(rlhf, arm.config, command=command, config_yaml=arm.loaded.yaml_text))
    record = newest_record(arm, before=before)
    error = ended.error
    if error is None:
        return ArmResult(arm, record)
    if isinstance(error, RunCancelledError) or not isinstance(error, Exception):
        raise error
    is_spent = isinstance(error, StageFailedError) and error.failure.kind is FailureKind.BUDGET_SPENT
    result = ArmResult(arm, record, _told(error), waits=isinstance(error, PersonAwaitedError), is_spent=is_spent)
    if isinstance(error, GateClosedError) and result.compares:
        return ArmResult(arm, record)  # its policy was judged, and the page shows the gate
    return result


def _told(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _compared(
    run: PipelineRun, comparison: Comparison, results: list[ArmResult]
) -> tuple[PolicyComparison | None, str]:
    """Return the policies against each other; else why that could not be."""
    judged = [result for result in results if result.compares]
    if len(judged) < 2:
        count = "No policy was" if not judged else "Only one policy was"
        return None, f"{count} judged, and a comparison needs two."
    current_display().say("")
    try:
        return compare_policies(run, judged, same_rewards=comparison.same_rewards, with_start=comparison.same_start), ""
    except (StageFailedError, SourceError) as error:
        return None, str(error)


def _write_page(
    run: PipelineRun,
    comparison: Comparison,
    results: list[ArmResult],
    compared: PolicyComparison | None,
    problem: str,
) -> Path:
    """Write the page beside the arms, and show it in Prefect and MLflow."""
    page = arms_page(_report(run, comparison, results, compared, problem))
    folder = run.output_dir / "reports" / run.run_id
    folder.mkdir(parents=True, exist_ok=True)
    html, markdown = page_html(page), page_markdown(page)
    write_atomically(folder / REPORT_HTML_FILE, html)
    write_atomically(folder / REPORT_MARKDOWN_FILE, markdown)
    write_atomically(run.output_dir / REPORT_HTML_FILE, html)
    run.tracking.log_report(folder)
    show_markdown("arms", markdown, description="The arms against each other")
    return run.output_dir / REPORT_HTML_FILE


def _report(
    run: PipelineRun,
    comparison: Comparison,
    results: list[ArmResult],
    compared: PolicyComparison | None,
    problem: str,
) -> ArmsReport:
    costs = read_costs(run.output_dir)
    users: dict[tuple[StageName, str], list[str]] = {}
    for result in results:
        for stage, key in result.keys.items():
            names = users.setdefault((stage, key), [])
            if stage is not StageName.WRITE_REPORT and result.arm.name not in names:
                names.append(result.arm.name)
    shared = tuple(
        SharedResult(stage, tuple(names), gpu_hours(cost for cost in costs if (cost.stage, cost.key) == (stage, key)))
        for (stage, key), names in users.items()
        if len(names) > 1
    )
    return ArmsReport(
        name=comparison.file.name,
        run_id=run.run_id,
        started_at=run.started_at,
        command=run.command,
        profile=run.config.gpu_profile.name,
        runs=tuple(result.as_run({used for used, names in users.items() if len(names) > 1}) for result in results),
        differences=comparison.differences,
        shared=shared,
        gpu_hours=gpu_hours(costs),
        max_gpu_hours=comparison.file.max_gpu_hours,
        has_gpus=run.config.gpu_profile.num_gpus > 0,
        comparison=compared,
        problem=problem,
        mlflow_url=run.tracking.run_url(run.mlflow_run_id),
        prefect_url=run.prefect_url,
    )


def _raise_what_is_left(results: list[ArmResult], problem: str) -> None:
    """Raise if an arm waits for a person, or did not come to its end, or nothing could be compared."""
    waiting = [f"{result.arm.label}: {result.problem}" for result in results if result.waits]
    failed = [f"{result.arm.label}: {result.problem}" for result in results if result.problem and not result.waits]
    if failed or (problem and not waiting):
        lines = "\n".join(f"  {line}" for line in (*failed, *waiting, *([problem] if problem else [])))
        raise ArmsFailedError(f"Not every arm came to its end:\n{lines}\nThe page shows the others.")
    if waiting:
        lines = "\n".join(f"  {line}" for line in waiting)
        raise PersonAwaitedError(f"A person must decide first:\n{lines}\nThen start the comparison again.")
