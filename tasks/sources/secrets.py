"""Secrets of a run: from the environment, else from Secret blocks of the Prefect server.

They stay in the orchestrator: stages have no network and get none of its variables. The environment wins, so that
a user can use another token for one run without changing the shared one.
"""

import logging
import os

from tasks.config.logins import is_given_for, login_variables, mlflow_login

logger = logging.getLogger(__name__)

HUB_TOKEN_BLOCK = "rlhf-hub-token"  # noqa: S105 - the name of a block
MLFLOW_LOGIN_BLOCK = "rlhf-mlflow-login"
_LIMIT_S = 5.0


def stored_secret(block: str) -> str | None:
    """Text in that Secret block; None if there is none, or no Prefect server is known or answers."""
    if not os.environ.get("PREFECT_API_URL"):
        return None  # Prefect's client would start its own server
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    from tasks.clients.prefect import no_retries

    try:
        with no_retries():
            client = get_client(httpx_settings={"timeout": _LIMIT_S}, sync_client=True)
            found = client.read_block_document_by_name(block, "secret", include_secrets=True)
    except ObjectNotFound:
        return None
    except Exception as error:  # any error of client or server: a run may not need the secret
        logger.warning("Prefect could not be queried for the Secret block %s (%s).", block, type(error).__name__)
        return None
    value = found.data.get("value")
    return value.strip() or None if isinstance(value, str) else None


def take_mlflow_login(uri: str) -> None:
    """Let MLflow's client in this process log in with the Secret block, if the environment names no login.

    Args:
        uri: of the MLflow in use; the block's login is only for the one that the environment names.
    """
    if not is_given_for("mlflow", uri, os.environ):
        return
    if mlflow_login(os.environ) or os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return
    login = stored_secret(MLFLOW_LOGIN_BLOCK)
    if login is None:
        return
    if ":" not in login:
        logger.warning("The Secret block %s must have the form `user:password`; it is not used.", MLFLOW_LOGIN_BLOCK)
        return
    os.environ.update(login_variables("mlflow", login))
