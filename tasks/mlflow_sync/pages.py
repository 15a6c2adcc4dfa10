"""Addresses of MLflow's pages about training. By default MLflow opens its pages about agents, which lack our runs."""

import http.client
import json
import os
import urllib.request
from urllib.parse import quote, urlencode, urlsplit

from tasks.config.logins import login_headers

# Query of the address of an experiment's page.
FOR_TRAINING = "workflowType=machine_learning"
# For a new experiment; without this tag MLflow shows it as one about agents.
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_LIMIT_S = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def runs_page(uri: str, experiment: str, *, is_made: bool = False) -> str:
    """Return the address of the experiment's runs; `uri` if it is no server, lacks the experiment or does not answer.

    The login comes from the environment, as for MLflow's own clients.

    Args:
        is_made: create a missing experiment, so that its page exists before its first run.
    """
    uri = uri.rstrip("/")
    if not uri.startswith("http"):
        return uri
    number = _experiment_id(uri, experiment)
    if not number and is_made:
        tags = [{"key": key, "value": value} for key, value in EXPERIMENT_TAGS.items()]
        made = _answer(f"{uri}/api/2.0/mlflow/experiments/create", {"name": experiment, "tags": tags})
        number = str(made.get("experiment_id", "")) or _experiment_id(uri, experiment)  # another process made it
    return f"{uri}/#/experiments/{quote(number)}/runs?{FOR_TRAINING}" if number else uri


def _experiment_id(uri: str, name: str) -> str:
    found = _answer(f"{uri}/api/2.0/mlflow/experiments/get-by-name?{urlencode({'experiment_name': name})}")
    experiment = found.get("experiment")
    return str(experiment.get("experiment_id", "")) if isinstance(experiment, dict) else ""


def _answer(url: str, body: object = None) -> dict[str, object]:
    """Return the server's JSON answer; empty if it does not answer, or refuses."""
    # Servers on this machine are called without a proxy.
    proxies: dict[str, str] | None = {} if urlsplit(url).hostname in _LOOPBACK else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})  # noqa: S310 - http
    for name, value in login_headers("mlflow", os.environ).items():
        request.add_unredirected_header(name, value)
    try:
        with opener.open(request, timeout=_LIMIT_S) as response:
            told = json.load(response)
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
