"""Tells people that a gate waits for them: an event in Prefect, and the notification block that the gate names.

Telling never stops a run; only a block that is not there is a mistake, told before anything is spent.
"""

import asyncio
import importlib
import inspect
import logging
from contextlib import suppress

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.events.utilities import emit_event
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from tasks.approval_store import Question
from tasks.approval_words import waiting_text
from tasks.gates import Gates

logger = logging.getLogger(__name__)

WAITING_EVENT = "rlhf.gate.waiting"
_ANSWER_LIMIT_S = 5.0


class NotifyBlockError(Exception):
    """A gate names a notification block that Prefect does not have, or that cannot notify."""


def check_notify_blocks(gates: Gates) -> None:
    """Every block that a gate would call is there and can notify; not asked where no gate asks a person.

    Raises:
        NotifyBlockError: with the key, and how the block is made. A server that does not answer is no mistake.
    """
    for gate, settings in (("reward_model", gates.reward_model), ("policy", gates.policy)):
        if settings.notify is None or settings.approval == "none":
            continue
        type_slug, _, name = settings.notify.partition("/")
        if _is_missing(type_slug, name):
            raise NotifyBlockError(
                f"gates.{gate}.notify: Prefect has no block `{settings.notify}`; nothing was spent. Make it in Prefect "
                f"under Blocks (type `{type_slug}`, name `{name}`), or leave the key out."
            )


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


def _is_missing(type_slug: str, name: str) -> bool:
    """Whether a server that answers has no such block."""
    try:
        limits = {"timeout": _ANSWER_LIMIT_S}
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings=limits, sync_client=True) as client,
        ):
            client.read_block_document_by_name(name, type_slug, include_secrets=False)
    except ObjectNotFound:
        return True
    except Exception as error:
        logger.warning("Prefect was not asked for the block %s/%s: %s", type_slug, name, type(error).__name__)
    return False


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
