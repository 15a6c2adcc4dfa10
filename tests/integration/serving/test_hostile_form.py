"""Somebody who has only the forms gets no file outside, no secret, no code, and does the pages no lasting harm."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from faults.tiny_project import TinyProject
from hostile_values import CANARY, HOSTILE, KEYS, MARK, TEXTS
from served_project import STAGE_PROGRAM, ServedProject

from flows.forms.pipeline import CONFIGS_VARIABLE, load_form
from flows.servers.local import ServerSettings, local_servers
from flows.servers.logins import own_login
from flows.serving.certify_form import load_certify_form
from flows.serving.deployments import served_flows
from tasks.config.errors import ConfigError
from tasks.config.sources import DatasetSource
from tasks.sources.errors import SourceError
from tasks.sources.resolve import probe_dataset

pytestmark = pytest.mark.slow

FAR_AWAY = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2099-01-01T00:00:00Z"}}
FORMS = {flow.name: flow.fn for flow in served_flows()}
_OF_A_KNOWN_FIELD = 40
_SAVE_SECRETS = """
from prefect.blocks.system import Secret
Secret(value="canary41d7a9b8").save("hostile-canary")
"""
# What the pages ask for their lists.
LISTS = {
    "/flow_runs/filter": {"limit": 200},
    "/flow_runs/paginate": {"limit": 200},
    "/ui/flow_runs/history": {"limit": 200},
    "/deployments/filter": {},
    "/deployments/paginate": {},
    "/flows/filter": {},
    "/flows/paginate": {},
    "/task_runs/filter": {"limit": 200},
    "/artifacts/filter": {"limit": 200},
    "/events/filter": {},
    "/logs/filter": {"limit": 200},
    "/automations/filter": {},
    "/variables/filter": {},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[ServedProject]:
    """A served project with secrets around it; beside it lies a folder that nobody may write to."""
    place = tmp_path_factory.mktemp("hostile")
    folder = TinyProject.make(place / "project", project).folder
    (place / "outside").mkdir()
    (place / "outside/token").write_text(CANARY)
    (folder / "link").symlink_to(place / "outside")
    (folder / ".env").write_text(f"DB_WORDS={CANARY}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(place / "outside"))
        patch.setenv("HF_TOKEN", f"hf_{CANARY}")
        patch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
        patch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
        patch.setenv("MLFLOW_TRACKING_PASSWORD", CANARY)
        settings = ServerSettings(state_dir=folder / "outputs/.servers")
        with local_servers(settings, say=lambda text: None) as servers:
            served = ServedProject(folder, servers)
            variables = served.environment | {"PREFECT_API_URL": servers.prefect_api_url}
            subprocess.run([sys.executable, "-c", _SAVE_SECRETS], env=variables, check=True, capture_output=True)
            try:
                served.serve()
                yield served
            finally:
                served.kill_what_is_left()


def send(served: ServedProject, deployment: UUID, parameters: Any, **more: Any) -> httpx.Response:
    """What the page sends, with numbers that JSON has no word for spelled as Python does."""
    body = json.dumps({"parameters": parameters, "state": FAR_AWAY, **more})
    path = f"/deployments/{deployment}/create_flow_run"
    for _ in range(2):
        try:
            headers = {"Content-Type": "application/json"}
            return served.client.request("POST", path, content=body, headers=headers)  # type: ignore[arg-type]
        except httpx.HTTPStatusError as error:
            return error.response
        except httpx.TransportError:  # the server drops the connection after an answer that it fails at
            continue
    raise AssertionError(f"no answer to {body[:300]}")


def fields(served: ServedProject) -> Iterator[tuple[str, UUID, str, tuple[Any, ...]]]:
    """Deployment, its id, one of its fields, and values for it: all where the field is new, else the next 40."""
    seen: list[Any] = []
    for name in FORMS:
        found = served.client.read_deployment_by_name(f"{name}/{name}")
        for field, schema in found.parameter_openapi_schema["properties"].items():
            known = {**schema, "position": 0}
            begin = len(seen) * _OF_A_KNOWN_FIELD % len(HOSTILE)
            some = (HOSTILE + HOSTILE)[begin : begin + _OF_A_KNOWN_FIELD]
            yield name, found.id, field, some if known in seen else HOSTILE
            seen.append(known)


def refused_by_the_run(deployment: str, parameters: dict[str, Any]) -> str:
    """What the run says to such a form; empty where it would start. Any other error fails the test."""
    load = load_certify_form if deployment == "certify" else load_form
    try:
        loaded, _ = load(FORMS[deployment], parameters)
    except ConfigError as error:
        return str(error)
    folder = Path.cwd()
    for place in (loaded.config.output_dir, loaded.config.store_dir):
        assert place.resolve().is_relative_to(folder), parameters
    assert CANARY not in loaded.yaml_text, parameters
    return shown_by_the_check(loaded.config.dataset)


def shown_by_the_check(data: DatasetSource) -> str:
    """What the run's check of the data would put on the pages; empty where it finds nothing wrong."""
    if data.hub_id is not None or any(part.hub_id is not None for part in data.mixture):
        return ""  # nobody is there
    try:
        probe_dataset(data, token=None)
    except SourceError as error:
        assert own_login(Path("outputs/.servers")).partition(":")[2] not in str(error), data
        return str(error)
    return ""


def outside(served: ServedProject) -> list[str]:
    return sorted(str(path) for path in (served.folder.parent / "outside").rglob("*"))


def assert_no_harm(served: ServedProject) -> None:
    """Every list answers, no secret stands in any, no stage was started, and no command of a value was run."""
    for path, body in LISTS.items():
        answer = served.post(path, body)
        assert answer.status_code == 200, f"{path}: {answer.text[:300]}"
        assert CANARY not in answer.text, path
    assert CANARY not in served.said
    assert not list(served.processes(STAGE_PROGRAM))
    assert not (served.folder.parent / MARK).exists()


# 1: each value in each field, in minutes; CI takes each fourth, others in each field.
EVERY = int(os.environ.get("RLHF_HOSTILE_EVERY", "1"))


def in_the_project(served: ServedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(served.folder)
    monkeypatch.setenv(CONFIGS_VARIABLE, str(served.folder / "configs/runs"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def test_no_value_of_any_field_does_harm(served: ServedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_project(served, monkeypatch)
    before = outside(served)
    counts: Counter[str] = Counter()
    for number, (deployment, identity, field, values) in enumerate(fields(served)):
        for value in values[number % EVERY :: EVERY]:
            given = {"start_from": "tiny", field: value}
            answer = send(served, identity, given)
            shown = f"{deployment}.{field} = {str(value)[:80]!r}"
            assert answer.status_code in (201, 400, 409, 422, 500), f"{shown}: {answer.status_code}"
            if answer.status_code == 500:  # JSON in JSON, nested a thousand times: it fails at that, and keeps nothing
                assert served.post("/flow_runs/filter", {"limit": 200}).status_code == 200, shown
                counts["too much for the server"] += 1
                continue
            if answer.status_code != 201:
                counts["refused by the server"] += 1
                continue
            taken = answer.json()
            assert CANARY not in answer.text, shown
            said = refused_by_the_run(deployment, taken["parameters"])
            assert CANARY not in said, shown
            counts["refused by the run" if said else "harmless"] += 1
            served.client.delete_flow_run(UUID(taken["id"]))
        if field == "start_from":
            assert_no_harm(served)
    print(f"\nfields x values: {sum(counts.values())}: {dict(counts)}")
    assert outside(served) == before
    assert counts["refused by the server"] > counts["harmless"]
    assert_no_harm(served)


def test_no_line_of_more_settings_does_harm(served: ServedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_project(served, monkeypatch)
    before = outside(served)
    counts: Counter[str] = Counter()
    for number, key in enumerate(KEYS):
        for text in TEXTS[number % EVERY :: EVERY]:
            for line in (f"{key}={text}", f"{key}={json.dumps(text)}"):
                said = refused_by_the_run("rlhf-pipeline", {"start_from": "tiny", "more_settings": [line]})
                assert CANARY not in said, line
                counts["refused" if said else "harmless"] += 1
    print(f"\nkeys x texts: {sum(counts.values())}: {dict(counts)}")
    assert outside(served) == before
    assert_no_harm(served)


REAL: list[dict[str, Any]] = [
    {"more_settings": ["run.output_dir=../outside/x"]},
    {"more_settings": ["run.store_dir=link/x"]},
    {"more_settings": ["dataset.train=/proc/self/environ"]},
    {"more_settings": ["gpu_profile=../outside/token.yaml"]},
    {"more_settings": ["tracking.mlflow_uri=http://127.0.0.1:9"]},
    {"more_settings": [f"run.name=$(touch ../{MARK})"]},
    {"more_settings": [f'run.tags=!!python/object/apply:os.system ["touch ../{MARK}"]']},
    {"base_model": "{{ prefect.blocks.secret.hostile-canary }}"},
    {"save_as": {"__prefect_kind": "jinja", "template": "{{ 7 * 7 }}-a_b"}},
]


def test_what_the_server_takes_ends_in_words_and_starts_nothing(served: ServedProject) -> None:
    before = outside(served)
    deployment = served.client.read_deployment_by_name("filter-dataset/filter-dataset").id
    started = []
    for values in REAL:
        body = {"parameters": {"start_from": "tiny", **values}, "state": {"type": "SCHEDULED"}}
        answer = served.post(f"/deployments/{deployment}/create_flow_run", body)
        if answer.status_code == 201:
            started.append(UUID(answer.json()["id"]))
    assert len(started) >= len(REAL) - 2
    for run in started:
        assert served.ended(run, timeout_s=600) == "Failed", served.message(run)
        told = served.message(run) + "".join(served.logs(run))
        assert CANARY not in told
        assert "Traceback" not in served.message(run)
    assert outside(served) == before
    assert_no_harm(served)


def test_what_comes_in_without_the_servers_check_is_named_and_the_serving_goes_on(served: ServedProject) -> None:
    deployment = served.client.read_deployment_by_name("filter-dataset/filter-dataset").id
    known = {run["id"] for run in served.post("/ui/flow_runs/history", {}).json()}
    now = {"type": "SCHEDULED"}
    unchecked: list[dict[str, Any]] = [{"sample_limit": 2**64}, {"save_as": "\ud800"}, {"no_such_field": 1}]
    for values in unchecked:
        send(served, deployment, {"start_from": "tiny", **values}, enforce_parameter_schema=False, state=now)
    made = {run["id"] for run in served.post("/ui/flow_runs/history", {}).json()} - known
    assert len(made) == len(unchecked)
    named = [f"prefect flow-run delete {run}" for run in made]
    served.wait_for(lambda: sum(command in served.said for command in named) == 2, what="the two commands")
    for command in named:
        if command in served.said:
            words = [sys.executable, "-m", *command.split()]
            variables = os.environ | {"PREFECT_API_URL": served.servers.prefect_api_url}
            subprocess.run(words, env=variables, stdin=subprocess.DEVNULL, check=True, capture_output=True)
            made.remove(command.split()[-1])
    (unknown,) = (UUID(run) for run in made)
    assert served.ended(unknown) in ("Failed", "Crashed")
    assert served.stages(unknown) == []
    run = served.start("filter-dataset", start_from="tiny", more_settings=["run.output_dir=../outside/x"])
    assert served.ended(run) == "Failed"
    assert_no_harm(served)
