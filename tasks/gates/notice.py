"""Notify people that a gate waits for them: an event in Prefect, and the notification block that the gate names.

A failed notification never stops a run. Only a missing block is a mistake, reported before anything is spent.
"""

import asyncio
import importlib
import inspect
from contextlib import suppress

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.events.utilities import emit_event
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings

from containers.contracts.records import CheckFinding
from tasks.clients.prefect import no_retries
from tasks.config.gates import Gates
from tasks.gates.text import waiting_text
from tasks.store.decisions import Question

WAITING_EVENT = "rlhf.gate.waiting"
_ANSWER_LIMIT_S = 5.0
_CAN_NOTIFY = "notify"


def notify_blocks(gates: Gates) -> tuple[tuple[str, str], ...]:
    """Gate and block of every gate that notifies people; a gate without approval does not."""
    named = (("reward_model", gates.reward_model), ("policy", gates.policy))
    return tuple((gate, each.notify) for gate, each in named if each.notify is not None and each.approval != "none")


def block_finding(gate: str, block: str, prefect_api_url: str | None) -> CheckFinding:
    """Check that Prefect has the notification block of that gate, and that the block can notify.

    Args:
        prefect_api_url: None if the run starts a server itself; then its own check looks the block up.
    """
    type_slug, _, name = block.partition("/")
    row = CheckFinding(name=f"gate {gate}", found=f"block `{block}`", wanted="a block that can notify", verdict="ok")
    if prefect_api_url is None:
        return row.model_copy(update={"found": f"block `{block}`, looked up once the run has started Prefect"})
    try:
        with temporary_settings({PREFECT_API_URL: prefect_api_url}):
            capabilities = _capabilities(type_slug, name)
    except ObjectNotFound:
        advice = (
            f"Make it in Prefect under Blocks (type `{type_slug}`, name `{name}`), or leave gates.{gate}.notify out."
        )
        found = f"no block `{block}` in Prefect"
        return row.model_copy(update={"found": found, "verdict": "failure", "advice": advice})
    except Exception as error:
        found = f"block `{block}`, not looked up ({type(error).__name__})"
        return row.model_copy(update={"found": found, "verdict": "warning", "advice": "Check that Prefect answers."})
    if _CAN_NOTIFY in capabilities:
        return row
    advice = (
        f"The run would wait without notifying anyone. Name a block of type Slack, Teams, e-mail or Custom Webhook in "
        f"gates.{gate}.notify."
    )
    found = f"block `{block}`, which cannot notify anybody"
    return row.model_copy(update={"found": found, "verdict": "warning", "advice": advice})


def notify(question: Question, *, block: str | None, flow_run_id: str) -> str:
    """Notify people that the gate waits. Return the problem as text; empty: none."""
    title = f"{question.run_name}: the {question.verdict.model} waits for a decision"
    body = "\n".join(part for part in (waiting_text(question), question.prefect_url) if part)
    _emit(question, flow_run_id=flow_run_id)
    if block is None:
        return ""
    try:
        # Prefect finds the class of a block only after its module was imported.
        importlib.import_module("prefect.blocks.notifications")
        loaded = Block.load(block)
        if not isinstance(loaded, NotificationBlock):
            return f"The block {block} cannot notify anybody; name one of type Slack, Teams, e-mail or Custom Webhook."
        told = loaded.notify(body=body, subject=title)
        if inspect.iscoroutine(told):  # a custom block may be asynchronous only
            asyncio.run(told)
    except Exception as error:  # its text may hold the address, which is a secret
        status = getattr(getattr(error, "response", None), "status_code", None)
        detail = f"{type(error).__name__}{f' {status}' if status else ''}"
        return f"The block {block} notified no one that the gate waits ({detail}); the run waits all the same."
    return ""


def _capabilities(type_slug: str, name: str) -> tuple[str, ...]:
    """Capabilities of a block; raise ObjectNotFound if Prefect has no such block. Does not retry."""
    limits = {"timeout": _ANSWER_LIMIT_S}
    with (
        no_retries(),
        get_client(httpx_settings=limits, sync_client=True) as client,
    ):
        found = client.read_block_document_by_name(name, type_slug, include_secrets=False)
    return tuple(found.block_schema.capabilities) if found.block_schema else (_CAN_NOTIFY,)


def _emit(question: Question, *, flow_run_id: str) -> None:
    related = []
    if flow_run_id:
        related.append({"prefect.resource.id": f"prefect.flow-run.{flow_run_id}", "prefect.resource.role": "flow-run"})
    with suppress(Exception):  # the event is optional
        emit_event(
            WAITING_EVENT,
            resource={
                "prefect.resource.id": f"rlhf.gate.{question.run_name}.{question.gate}",
                "prefect.resource.name": f"{question.gate} gate of {question.run_name}",
                "rlhf.run_name": question.run_name,
                "rlhf.gate": question.gate,
            },
            related=related,
            payload={
                "rules": [rule.model_dump(mode="json") for rule in question.verdict.rules],
                "rules_passed": question.verdict.passed,
                "until": question.until,
                "prefect_url": question.prefect_url,
            },
        )
