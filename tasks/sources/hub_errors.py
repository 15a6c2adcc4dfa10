"""Turn errors of the hub's client into messages for users, without the token."""

import re
from collections.abc import Sequence
from typing import Literal

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tasks.sources.errors import HubUnreachableError, SourceAccessError, SourceError, SourceNotFoundError
from tasks.sources.secrets import HUB_TOKEN_BLOCK

RepoKind = Literal["model", "dataset"]
_TOKEN_PLACES = f"HF_TOKEN, the Secret block {HUB_TOKEN_BLOCK}, or `hf auth login`"
_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY, _SERVER_ERROR = 401, 403, 429, 500


def sendable(token: str | None) -> str | Literal[False]:
    """Return the token in the form that the hub's client takes.

    Raises:
        SourceAccessError: it is not valid in a header; the client's own error would show it.
    """
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise SourceAccessError(
            "The hub token holds a blank, a line break or another character that no token has.",
            f"Copy it again to where it is kept: {_TOKEN_PLACES}.",
        )
    return token or False


def tellable(error: BaseException, token: str | None) -> BaseException | None:
    """Return the error as cause of ours; None if it or one of its causes has the token, as causes end up in logs."""
    seen: BaseException | None = error
    while seen is not None:
        if token and (token in str(seen) or token in repr(seen)):
            return None
        seen = seen.__cause__ or seen.__context__
    return error


def explained(
    error: Exception, kind: RepoKind, hub_id: str, *, revision: str, token: str | None, fetched: Sequence[str]
) -> SourceError:
    """Convert an error of the hub's client to a `SourceError` with what, why and what to do.

    Args:
        fetched: commits of the repository that are on this disk.
    """
    what, key = f"{kind} {hub_id}@{revision}", "base_model" if kind == "model" else "dataset"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    with_token = "The token in use has no access" if token else f"No token is set ({_TOKEN_PLACES})"
    if isinstance(error, GatedRepoError):
        return SourceAccessError(
            f"{what} is gated. {with_token}.",
            "Accept its terms on its page on the hub, and set HF_TOKEN to a token of that account.",
        )
    if status == _FORBIDDEN:
        return SourceAccessError(
            f"{what}: access is forbidden (403), by the hub or by a proxy on the way. {with_token}.",
            "Open the address in a browser on this machine to see who says so; set HF_TOKEN, or ask for access.",
        )
    if isinstance(error, RevisionNotFoundError):
        return SourceNotFoundError(
            f"{what}: the repository exists, the revision does not.",
            f"Correct {key}.revision to a branch or a commit.",
        )
    if status == _UNAUTHORIZED and token and not isinstance(error, RepositoryNotFoundError):
        return SourceAccessError(
            f"{what}: the hub refuses the token in use; it is expired or wrong.",
            "Set HF_TOKEN to a valid one, or leave it out: a public repository needs none.",
        )
    if isinstance(error, RepositoryNotFoundError) or status == _UNAUTHORIZED:
        return SourceNotFoundError(
            f"{what} does not exist on the hub, or it is private. {with_token}.",
            f"Correct {key}.hub_id, or set HF_TOKEN to a token that may read it.",
        )
    if status == _TOO_MANY:
        return HubUnreachableError(f"{what}: the hub answers too many requests (429).", "Wait, or set HF_TOKEN.")
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set, so the hub is not queried"
    elif status is not None:
        why = f"the hub answers with status {status}"
    else:
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
        why = f"the hub cannot be read ({type(cause).__name__}: {_shown(str(cause), token)})"
    return HubUnreachableError(f"{what}: {why}.", _without_hub(kind, fetched, try_later=(status or 0) >= _SERVER_ERROR))


def _shown(text: str, token: str | None) -> str:
    """200 characters on one line, without the token and without what follows the `?` of addresses: signatures."""
    bare = text.replace(token, "***") if token else text
    return re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", " ".join(bare.split()))[:200]


def _without_hub(kind: RepoKind, fetched: Sequence[str], *, try_later: bool) -> str:
    """Advice for when the hub is not available, with settings as the user types them."""
    first = "Try again later" if try_later else "Check the network, proxy and HF_ENDPOINT, and start again"
    local = (
        "`--set 'base_model={path: FOLDER}'`"
        if kind == "model"
        else "`--set 'dataset={train: FILE, validation: FILE}'`"
    )
    known = f" Fetched before, so usable as revision without a network: {', '.join(fetched[-3:])}." if fetched else ""
    return f"{first}; or download it elsewhere and give {local}.{known}"
