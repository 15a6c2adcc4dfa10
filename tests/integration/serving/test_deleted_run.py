"""Somebody deletes a flow run while it works: it stops as if cancelled. A lost or new database stops nothing."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from faults.mortal_server import Prefect
from prefect import flow
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from short_runs import end, processes_in, start, wait_for_log

from tasks.prefect_sync.api import PrefectApi
from tasks.prefect_sync.cancellation import DELETED, RunCancelledError
from tasks.prefect_sync.ledger import LEDGER_FOLDER
from tasks.prefect_sync.link import PipelineLeft, linked_to_prefect, take_last_end, why_stopped

pytestmark = pytest.mark.slow

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def prefect(tmp_path: Path) -> Iterator[Prefect]:
    server = Prefect(tmp_path / "servers")
    try:
        server.start()
        with temporary_settings({PREFECT_API_URL: server.api_url}):
            yield server
    finally:
        server.stop()


def until(condition: Callable[[], bool], *, limit_s: float = 90) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
    return condition()


def run_linked(
    folder: Path, work: Callable[[str, Callable[[], bool]], None], *, say: Callable[[str], None] = print
) -> None:
    """A flow run with that work, tied to Prefect as every pipeline is."""

    @flow(name="rlhf")
    def pipeline() -> None:
        with linked_to_prefect(folder, say=say) as should_stop:
            work(str(flow_run.id), should_stop)

    pipeline()


def test_a_flow_run_that_is_deleted_stops_as_if_cancelled_and_leaves_nothing_to_tell(
    prefect: Prefect, tmp_path: Path
) -> None:
    def delete_and_wait(flow_run_id: str, should_stop: Callable[[], bool]) -> None:
        assert not should_stop()
        prefect.client.delete_flow_run(UUID(flow_run_id))
        assert until(should_stop)
        raise RunCancelledError(why_stopped())

    with pytest.raises(PipelineLeft):
        run_linked(tmp_path, delete_and_wait)
    ended = take_last_end()
    assert ended is not None
    assert str(ended.error) == DELETED
    assert ended.told()
    assert list((tmp_path / LEDGER_FOLDER).glob("*.json")) == []


def test_a_flow_run_that_is_deleted_with_its_flow_stops_too(prefect: Prefect, tmp_path: Path) -> None:
    def delete_and_wait(flow_run_id: str, should_stop: Callable[[], bool]) -> None:
        prefect.client.delete_flow(prefect.client.read_flow_run(UUID(flow_run_id)).flow_id)
        assert PrefectApi().flow_run(flow_run_id) is None
        assert until(should_stop)
        raise RunCancelledError(why_stopped())

    with pytest.raises(PipelineLeft):
        run_linked(tmp_path, delete_and_wait)
    take_last_end()


@pytest.mark.parametrize("database", ["an empty one", "one from before the run"])
def test_a_server_that_comes_back_with_another_database_stops_no_run(
    prefect: Prefect, tmp_path: Path, database: str
) -> None:
    run_linked(tmp_path / "earlier", lambda flow_run_id, should_stop: None)  # the flow `rlhf` is known from here on
    prefect.stop()
    backup = {path: path.read_bytes() for path in prefect.database.parent.glob(f"{prefect.database.name}*")}
    prefect.start()
    stopped: list[bool] = []

    def swap_and_wait(flow_run_id: str, should_stop: Callable[[], bool]) -> None:
        prefect.kill()
        for path in prefect.database.parent.glob(f"{prefect.database.name}*"):
            path.unlink()
        if database == "one from before the run":
            for path, content in backup.items():
                path.write_bytes(content)
        prefect.start()
        assert PrefectApi().flow_run(flow_run_id) is None
        stopped.append(until(should_stop, limit_s=20))

    said: list[str] = []
    with pytest.raises(ObjectNotFound):  # the engine has nobody to tell the end
        run_linked(tmp_path, swap_and_wait, say=said.append)
    assert stopped == [False]
    assert len([line for line in said if "so it uses another database now. The run goes on" in line]) == 1
    ended = take_last_end()
    assert ended is not None
    assert ended.error is None


def test_a_server_that_never_had_a_run_did_not_delete_it(prefect: Prefect) -> None:
    assert not PrefectApi().had_flow_run(str(uuid4()))


@pytest.mark.stages
def test_rlhf_run_whose_flow_run_is_deleted_while_it_trains_stops_and_says_why(prefect: Prefect, folder: Path) -> None:
    changes = (
        "run.name=deleted",
        "run.store_dir=outputs/deleted-store",
        f"tracking.prefect_api_url={prefect.api_url}",
        f"tracking.mlflow_uri={NOWHERE}",
    )
    running = start(folder, *changes)
    try:
        wait_for_log(running, folder / "outputs/deleted-store", stage="train_sft", sign=" of 2000")
        (shown,) = prefect.shown("deleted")
        prefect.client.delete_flow_run(shown.run.id)
        said, _ = running.communicate(timeout=200)
    finally:
        end(running)
    assert running.returncode == 130, said
    assert DELETED in said
    assert "goes on from the last good step" in said
    assert "was not told how this run ended" not in said
    assert "Traceback" not in said
    assert processes_in(folder / "outputs/deleted-store") == []
    assert DELETED in (folder / "outputs/deleted/report.html").read_text(encoding="utf-8")
