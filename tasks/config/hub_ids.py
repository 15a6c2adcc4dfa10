"""Ids and revisions of repositories on the hub, as text. Checks only the text."""

import re
from typing import Annotated

from pydantic import AfterValidator

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_NAME}/{_NAME}")
COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}")


def _hub_id(value: str) -> str:
    if not _HUB_ID.fullmatch(value) or ".." in value or "--" in value or value.endswith(".git"):
        raise ValueError(
            f"{value!r} is no hub id. It must be `org/name` of letters, digits, `-`, `_` and `.`, for example "
            f"`Qwen/Qwen3-8B`; a local folder or file goes without hub_id."
        )
    return value


def _revision(value: str) -> str:
    if not _REVISION.fullmatch(value) or ".." in value or value.endswith("/"):
        raise ValueError(
            f"{value!r} is no revision. Give a commit of 40 hexadecimal digits (best), or a branch or tag."
        )
    return value


HubId = Annotated[str, AfterValidator(_hub_id)]
Revision = Annotated[str, AfterValidator(_revision)]


def check_pairing(hub_id: str | None, revision: str | None) -> None:
    """Refuse an id without revision, and a revision without id.

    Raises:
        ValueError: one of them is missing.
    """
    if hub_id is not None and revision is None:
        raise ValueError(
            f"hub_id {hub_id} needs a `revision`: a commit of 40 hexadecimal digits (best), or a branch such as "
            f"`main`, which is resolved to its commit when the run starts."
        )
    if hub_id is None and revision is not None:
        raise ValueError(f"revision {revision!r} belongs to a hub_id, and none is given. Leave it out.")
