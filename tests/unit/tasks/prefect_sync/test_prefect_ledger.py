"""What Prefect did not take must outlive the process, and stay small however often it is shown."""

from pathlib import Path

from tasks.prefect_sync.ledger import JsonObject, Ledger, read_ledger


def artifact(data: str, *, task: str = "t", key: str = "train-policy") -> JsonObject:
    return {"type": "markdown", "key": key, "data": data, "flow_run_id": "f", "task_run_id": task}


def test_what_a_task_shows_again_under_a_key_replaces_what_waits(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, flow_run_id="f", owner={})
    for step in range(100):
        ledger.add_artifact(artifact(f"step {step}"))
    ledger.add_artifact(artifact("done", key="train-policy-progress"))
    ledger.add_artifact(artifact("other", task="u"))
    record = read_ledger(ledger.path)
    assert record is not None
    assert [item["data"] for item in record.artifacts] == ["step 99", "done", "other"]


def test_what_was_taken_waits_no_more(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, flow_run_id="f", owner={})
    ledger.add_artifact(artifact("a"))
    ledger.artifact_taken(ledger.record.artifacts[0])
    assert ledger.record.artifacts == ()
