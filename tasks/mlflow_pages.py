"""Addresses of MLflow's pages about training; by itself it opens on those about agents, which have nothing of ours."""

import http.client
import json
import os
import urllib.request
from urllib.parse import quote, urlencode, urlsplit

from tasks.service_logins import login_headers

# Behind the address of a page of an experiment.
FOR_TRAINING = "workflowType=machine_learning"
_LIMIT_S = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def runs_page(uri: str, experiment: str) -> str:
    """The table of the experiment's runs; `uri` where it is no server, has no such experiment, or does not say.

    The login is that of MLflow's own clients, from the environment.
    """
    uri = uri.rstrip("/")
    if not uri.startswith("http"):
        return uri
    # What listens on this machine is asked directly.
    proxies: dict[str, str] | None = {} if urlsplit(uri).hostname in _LOOPBACK else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    asked = f"{uri}/api/2.0/mlflow/experiments/get-by-name?{urlencode({'experiment_name': experiment})}"
    request = urllib.request.Request(asked)  # noqa: S310 - begins with http
    for name, value in login_headers("mlflow", os.environ).items():
        request.add_unredirected_header(name, value)
    try:
        with opener.open(request, timeout=_LIMIT_S) as response:
            number = json.load(response)["experiment"]["experiment_id"]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return uri
    return f"{uri}/#/experiments/{quote(str(number))}/runs?{FOR_TRAINING}"
