"""Time the servers' answers, for `benchmarks.load`: settling of dead runs, lists of runs, pages."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.servers.local import Servers
from tasks.mlflow_sync.pages import runs_page

_REPEATS = 3
_PAGE_LIMIT_MS = 120_000
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Answer:
    """A request, and the seconds of each of its answers."""

    what: str
    seconds: tuple[float, ...]


def _timed(what: str, ask: Callable[[], object], *, repeats: int = _REPEATS) -> Answer:
    seconds = []
    for _ in range(repeats):
        clock = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - clock)
    return Answer(what, tuple(seconds))


def settling(servers: Servers, folder: Path) -> Answer:
    """Time what a run does at its start about dead runs: the first time there are some, which it ends."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from tasks.prefect_sync.api import PrefectApi
    from tasks.prefect_sync.state import settle_the_dead

    said: list[str] = []

    def settle() -> None:
        with PrefectApi(timeout_s=60) as api:
            said.extend(settle_the_dead(folder / "outputs" / "demo" / "prefect_pending", api, flow_name="rlhf"))

    with temporary_settings({PREFECT_API_URL: servers.prefect_api_url}):
        found = _timed("settling", settle)
    return Answer(f"settling: {len(said)} dead runs the first time, then none", found.seconds)


def prefect_requests(servers: Servers) -> list[Answer]:
    """Time the requests that Prefect's page sends for its list of runs, and for the page of one run."""
    from prefect.client.orchestration import SyncPrefectClient

    client: Any = SyncPrefectClient(servers.prefect_api_url, httpx_settings={"timeout": 120})
    newest_first = {"sort": "START_TIME_DESC", "limit": 50, "page": 1}
    found: list[str] = [
        item["id"] for item in client.request("POST", "/flow_runs/paginate", json=newest_first).json()["results"]
    ]
    of_one = {"flow_runs": {"id": {"any_": found[:1]}}}
    by_name = {"flow_runs": {"name": {"like_": "demo-1"}}} | newest_first
    asked: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("page 1 of the runs", "/flow_runs/paginate", newest_first),
        ("the runs whose name has demo-1", "/flow_runs/paginate", by_name),
        ("how many runs", "/flow_runs/count", {}),
        ("how many tasks", "/task_runs/count", {}),
        ("tasks of one run", "/task_runs/filter", of_one | {"limit": 200}),
        ("log lines of one run", "/logs/filter", {"logs": {"flow_run_id": {"any_": found[:1]}}, "limit": 200}),
        ("artifacts of one run", "/artifacts/filter", of_one | {"limit": 200}),
    )
    return [_timed(what, lambda: client.request("POST", path, json=body)) for what, path, body in asked]  # noqa: B023


def mlflow_requests(servers: Servers) -> list[Answer]:
    """Time the requests to MLflow for its table of runs, and for one run by its tag, as our outbox sends it."""
    from mlflow import MlflowClient

    client = MlflowClient(servers.mlflow_uri)
    experiment = client.get_experiment_by_name("rlhf-flows")
    if experiment is None:
        raise SystemExit("MLflow does not show the experiment that was put into its database.")
    ids = [experiment.experiment_id]
    return [
        _timed("100 newest runs", lambda: client.search_runs(ids, max_results=100)),
        _timed("one run by its tag", lambda: client.search_runs(ids, "tags.`rlhf.run` = 'demo-7'", max_results=1)),
    ]


def page_loads(servers: Servers, *, num_runs: int) -> list[Answer]:
    """Time Prefect's and MLflow's lists of runs, each opened in a new page until it shows the newest run."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if program is None:
        return [Answer("NOT MEASURED: no Chromium is installed", (float("nan"),))]
    newest = f"demo-{num_runs - 1}"
    pages = (
        ("Prefect's runs", f"{servers.prefect_ui_url}/runs"),
        ("MLflow's runs", runs_page(servers.mlflow_uri, "rlhf-flows")),
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])

        def load(url: str) -> None:
            page = browser.new_page()
            try:
                page.goto(url, timeout=_PAGE_LIMIT_MS)
                page.get_by_text(newest).first.wait_for(timeout=_PAGE_LIMIT_MS)
            finally:
                page.close()

        found = [_timed(what, lambda: load(url)) for what, url in pages]  # noqa: B023
        browser.close()
    return found
