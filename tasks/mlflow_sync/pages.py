"""Addresses of MLflow's pages about training; by itself it opens on those about agents, which have nothing of ours."""

import http.client
import json
import os
import urllib.request
from urllib.parse import quote, urlencode, urlsplit

from tasks.config.logins import login_headers

# Behind the address of a page of an experiment.
FOR_TRAINING = "workflowType=machine_learning"
# Of an experiment that is made here; without it MLflow shows it as one about agents.
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_LIMIT_S = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def runs_page(uri: str, experiment: str, *, is_made: bool = False) -> str:
    """The table of the experiment's runs; `uri` where it is no server, has no such experiment, or does not say.

    The login is that of MLflow's own clients, from the environment.

    Args:
        is_made: an experiment that is missing is made, so that its page is there before its first run.
    """
    uri = uri.rstrip("/")
    if not uri.startswith("http"):
        return uri
    number = _experiment_id(uri, experiment)
    if not number and is_made:
        tags = [{"key": key, "value": value} for key, value in EXPERIMENT_TAGS.items()]
        made = _answer(f"{uri}/api/2.0/mlflow/experiments/create", {"name": experiment, "tags": tags})
        number = str(made.get("experiment_id", "")) or _experiment_id(uri, experiment)  # somebody else may have made it
    return f"{uri}/#/experiments/{quote(number)}/runs?{FOR_TRAINING}" if number else uri


def _experiment_id(uri: str, name: str) -> str:
    found = _answer(f"{uri}/api/2.0/mlflow/experiments/get-by-name?{urlencode({'experiment_name': name})}")
    experiment = found.get("experiment")
    return str(experiment.get("experiment_id", "")) if isinstance(experiment, dict) else ""


def _answer(url: str, body: object = None) -> dict[str, object]:
    """What the server says; nothing where it does not answer, or says no."""
    # What listens on this machine is asked directly.
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
