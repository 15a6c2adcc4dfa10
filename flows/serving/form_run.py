"""Run a form that a user submitted in Prefect: from its values to a checked run, its log and its last state."""

import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Failed

from containers.contracts.names import StageName
from containers.contracts.records import StageRecord
from containers.host.environment_block import hide_secrets, without_secrets
from flows.forms.pipeline import load_form, values_given
from flows.rlhf import Stages, run_stages
from flows.terminal import printable
from tasks.config.errors import ConfigError
from tasks.config.loading import LoadedConfig
from tasks.display import Display, install_display
from tasks.pipeline.attempt import run_logger
from tasks.plan.run_plan import plan_run
from tasks.prefect_sync.api import PrefectApi, PrefectAwayError, present_flow_run
from tasks.prefect_sync.link import PipelineLeft, take_last_end
from tasks.run.names import run_title

_LOGGED_BY_THE_STAGE = ("reused",)
_COLUMN_GAP = re.compile(r"(?<=\S) {2,}")
# In the name of a run that could not start.
NOT_STARTED = "(not started)"
_OURS = ("flows.", "tasks.", "containers.")


class LogDisplay(Display):
    """Writes each line once to the log of the flow run. Progress is an artifact of the stage."""

    def stage_started(self, stage: StageName, text: str) -> None:
        """Log one line."""
        run_logger().info("%s starts: %s", stage, text)

    def stage_ended(self, record: StageRecord) -> None:
        """Log one line: how the stage ended, and its first figures."""
        if record.status in _LOGGED_BY_THE_STAGE:
            return
        figures = ", ".join(f"{metric.name} {metric.value:.4g}" for metric in record.metrics[:3])
        if record.status == "ran":
            done = f"{record.stage} done in {record.duration_s:.0f} s"
            run_logger().info("%s", f"{done}: {figures}" if figures else done)
        else:
            run_logger().warning("%s %s: %s", record.stage, record.status, without_secrets(record.message))

    def say(self, text: str, *, is_logged: bool = False) -> None:
        """Log the lines unless they were logged, without the blanks that align columns in a terminal."""
        if not is_logged:
            run_logger().info("%s", _COLUMN_GAP.sub(" ", without_secrets(text)))


LoadsForm: TypeAlias = Callable[..., tuple[LoadedConfig, str]]


def run_form(
    values: Mapping[str, Any],
    *,
    until: StageName | None = None,
    load: LoadsForm = load_form,
    stages: Stages | None = None,
) -> "str | State[Any]":
    """Run the pipeline with the form of the present flow.

    Args:
        values: the filled-in values by name of the parameter.
        until: the last stage before the report, if the form has no field for it.
        load: makes the checked run from the form and its values.
        stages: the stages between system check and report; None: those of every run.

    Returns:
        Path of the report, or the state Failed, as `ended_or_failed`.
    """

    def run() -> str:
        loaded, command = load(_present_form(), values, fixed=() if until is None else (f"run.until={until}",))
        for warning in plan_run(loaded).warnings:
            get_run_logger().warning("%s", warning)
        return str(run_stages(loaded.config, command=command, config_yaml=loaded.yaml_text, stages=stages))

    return ended_or_failed(run)


def ended_or_failed(run: "Callable[[], str | State[Any]]") -> "str | State[Any]":
    """Return what `run` returns.

    An error of this project ends the flow run as Failed with only its text. Any other error rises, since its traceback
    is needed.

    Raises:
        PipelineLeft: Prefect knows that the run failed, and why.
    """
    _leave_interrupts_to_the_server()
    hide_secrets()
    install_display(LogDisplay())
    _tell_terminal(f"starts: {flow_run.ui_url}")
    try:
        returned = run()
        _tell_terminal("has ended.")
        return returned
    except Exception as error:
        if not type(error).__module__.startswith(_OURS):
            raise
        return _failed(without_secrets("\n".join((str(error), *getattr(error, "__notes__", ())))))
    except BaseException:  # Cancel, the end of the serving, or a gate that waits: Prefect's signals
        _tell_terminal("has stopped; its page says why.")
        raise


def _failed(text: str) -> "State[Any]":
    """Return Failed for the flow; if the server takes it at once, leave Prefect's engine by PipelineLeft instead.

    The engine would add its own traceback.
    """
    present = present_flow_run()
    state: State[Any] = Failed(message=text)
    get_run_logger().error("%s", text)
    _tell_terminal(f"failed: {text}")
    try:
        if present is not None:
            PrefectApi().set_flow_run_state(str(present.id), state)
    except PrefectAwayError as error:
        get_run_logger().warning("Prefect was not told at once how the run ended: %s", error)
        return state
    tell_what_is_left()
    raise PipelineLeft(state)


def served_run_name() -> str:
    """`run_title` of the form's run; for a form with mistakes, the configuration that it starts from."""
    values = present_values()
    try:
        loaded, command = load_form(_present_form(), values)
        return run_title(loaded.config, command=command)
    except ConfigError:
        return " ".join((values.get("start_from", ""), NOT_STARTED)).strip()


def present_values() -> dict[str, Any]:
    """The filled-in values of the present flow run."""
    context = FlowRunContext.get()
    return values_given((context.parameters or {}) if context else {})


def tell_prefect(flow: Flow[..., Any], flow_run: FlowRun, state: "State[Any]") -> None:
    """A hook for the end of a run."""
    tell_what_is_left()


def tell_what_is_left() -> None:
    """Tell Prefect now what it missed of the run, and remove the ledger."""
    end = take_last_end()
    if end is not None:
        end.told()


def _tell_terminal(text: str) -> None:
    """Print a line for `rlhf serve`. If that has ended, a rich console would end this process, too."""
    with suppress(OSError):
        sys.stdout.write(f"{printable(f'{flow_run.name} {text}')}\n")
        sys.stdout.flush()


def _present_form() -> Callable[..., object]:
    context = FlowRunContext.get()
    if context is None or context.flow is None:
        raise RuntimeError("A form is run by Prefect, as a flow.")
    return context.flow.fn


def _leave_interrupts_to_the_server() -> None:
    """Ignore Ctrl-C, which reaches every process of the terminal: `rlhf serve` ends its runs itself, in good order."""
    present = present_flow_run()
    is_deployed = present is not None and present.deployment_id is not None
    if is_deployed and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
