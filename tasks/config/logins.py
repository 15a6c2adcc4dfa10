"""How a client shows who it is to a Prefect or MLflow server, from the variables that their own clients read."""

import base64
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit, urlunsplit

PREFECT_LOGIN = "PREFECT_API_AUTH_STRING"
MLFLOW_USER = "MLFLOW_TRACKING_USERNAME"
MLFLOW_PASSWORD = "MLFLOW_TRACKING_PASSWORD"  # noqa: S105 - the name of a variable
# What to set, in messages.
LOGIN_VARIABLES = {"prefect": PREFECT_LOGIN, "mlflow": f"{MLFLOW_USER} and {MLFLOW_PASSWORD}"}

# Questions that need a login where there is one, as the health question does not; Prefect's follows its `/api`.
INSIDE_PATHS = {"prefect": "/admin/version", "mlflow": "/api/2.0/mlflow/experiments/search?max_results=1"}


def login_headers(name: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The header that Prefect's or MLflow's own client would send; empty where no login is set."""
    token, login = (
        (variables.get("PREFECT_API_KEY"), variables.get(PREFECT_LOGIN))
        if name == "prefect"
        else (variables.get("MLFLOW_TRACKING_TOKEN"), mlflow_login(variables))
    )
    if login:
        return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


def mlflow_login(variables: Mapping[str, str]) -> str:
    """`user:password`; empty where either is missing."""
    user, password = variables.get(MLFLOW_USER), variables.get(MLFLOW_PASSWORD)
    return f"{user}:{password}" if user and password else ""


def login_variables(name: str, login: str) -> dict[str, str]:
    """The variables by which a client learns `user:password`."""
    if name == "prefect":
        return {PREFECT_LOGIN: login}
    user, _, password = login.partition(":")
    return {MLFLOW_USER: user, MLFLOW_PASSWORD: password}


def without_login(url: str) -> str:
    """The same address without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def login_in(url: str) -> str:
    """`user:password` where an address holds both, decoded; else empty."""
    parts = urlsplit(url)
    return f"{unquote(parts.username)}:{unquote(parts.password)}" if parts.username and parts.password else ""
