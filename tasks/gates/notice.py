"""Tells people that a gate waits for them: an event in Prefect, and the notification block that the gate names.

Telling never stops a run; only a block that is not there is a mistake, told before anything is spent.
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
from tasks.config.gates import Gates
from tasks.gates.text import waiting_text
from tasks.prefect_client import no_retries
from tasks.store.decisions import Question

WAITING_EVENT = "rlhf.gate.waiting"
_ANSWER_LIMIT_S = 5.0
_CAN_NOTIFY = "notify"


def notify_blocks(gates: Gates) -> tuple[tuple[str, str], ...]:
    """Gate and block of every gate that would tell people; a gate that asks nobody tells nobody."""
    named = (("reward_model", gates.reward_model), ("policy", gates.policy))
    return tuple((gate, each.notify) for gate, each in named if each.notify is not None and each.approval != "none")


def block_finding(gate: str, block: str, prefect_api_url: str | None) -> CheckFinding:
    """Whether Prefect has the block by which that gate tells people, and whether it can notify.

    Args:
        prefect_api_url: None where the run starts a server itself; then its own check looks the block up.
    """
    type_slug, _, name = block.partition("/")
    row = CheckFinding(name=f"gate {gate}", found=f"block `{block}`", wanted="a block that tells people", verdict="ok")
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
        return row.model_copy(update={"found": found, "verdict": "warning", "advice": "Prefect must answer for that."})
    if _CAN_NOTIFY in capabilities:
        return row
    advice = (
        f"The run would wait, and nobody would be told. Name a block of type Slack, Teams, e-mail or Custom Webhook in "
        f"gates.{gate}.notify."
    )
    found = f"block `{block}`, which cannot notify anybody"
    return row.model_copy(update={"found": found, "verdict": "warning", "advice": advice})


def notify(question: Question, *, block: str | None, flow_run_id: str) -> str:
    """Tell people that the gate waits. Returns what went wrong, in words; empty: nothing."""
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
        if inspect.iscoroutine(told):  # a block of one's own may know only the asynchronous way
            asyncio.run(told)
    except Exception as error:  # its text may hold the address, which is a secret
        status = getattr(getattr(error, "response", None), "status_code", None)
        detail = f"{type(error).__name__}{f' {status}' if status else ''}"
        return f"Nobody was told by {block} that the gate waits ({detail}); the run waits all the same."
    return ""


def _capabilities(type_slug: str, name: str) -> tuple[str, ...]:
    """What a block can do; raises ObjectNotFound where Prefect has no such block, and asks only once."""
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
    with suppress(Exception):  # an event more or less
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
