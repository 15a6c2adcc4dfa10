"""A policy that waits for a person in a served run: it is announced, shown with figures and links, and goes on."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from approval_place import LIMIT_S, Receiver
from faults.tiny_project import TinyProject
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.settings import temporary_settings
from served_project import ServedProject

from containers.contracts.names import StageName
from flows.servers.local import ServerSettings, local_servers
from tasks.pipeline.standing_report import last_record

pytestmark = [pytest.mark.slow, pytest.mark.stages]

OUT_OF_REACH = 1000
ASKS = (
    "gates.policy.waive=null",
    "gates.policy.approval=required",
    "gates.policy.notify=custom-webhook/people",
    f"gates.policy.minimum_reward_gain={OUT_OF_REACH}",
    "train_reward_model.schedule.max_steps=10",
    "train_policy.schedule.max_steps=3",
)


@pytest.fixture
def served(tmp_path: Path, project: Path) -> Iterator[ServedProject]:
    folder = TinyProject.make(tmp_path / "project", project).folder
    with local_servers(ServerSettings(state_dir=folder / "outputs" / ".servers"), say=lambda text: None) as servers:
        served = ServedProject(folder, servers)
        try:
            served.serve()
            yield served
        finally:
            served.kill_what_is_left()


@pytest.fixture
def receiver(served: ServedProject) -> Iterator[Receiver]:
    """Who is called by the block `custom-webhook/people`."""
    receiver = Receiver()
    with temporary_settings(served.settings):
        CustomWebhookNotificationBlock(
            name="people",
            url=receiver.url,
            json_data={"title": "{{subject}}", "text": "{{body}}"},
            allow_private_urls=True,
        ).save("people")
    yield receiver
    receiver.server.shutdown()


def test_a_policy_that_waits_is_announced_and_goes_on_with_the_answer(
    served: ServedProject, receiver: Receiver
) -> None:
    run = served.start("rlhf-pipeline", start_from="tiny", save_as="judged", more_settings=list(ASKS))
    served.wait_for(lambda: served.state(run) in ("Suspended", "Failed", "Crashed"), what="the question", timeout_s=900)
    assert served.state(run) == "Suspended", served.message(run)

    (told,) = (json.loads(message) for message in receiver.received)
    assert told["title"] == "judged: the policy waits for a decision"
    assert "MISSED  reward gain over the reference: found" in told["text"]
    assert f"press Resume in Prefect: {served.servers.prefect_ui_url}" in told["text"]

    found = served.client.filter_flow_run_input(run, key_prefix="suspended-", limit=10, exclude_keys=set())
    (shown,) = (item.decoded_value for item in found if item.key.endswith("-description"))
    assert "The policy of run `judged` does **not** meet every rule of its gate:" in shown
    assert f"[the report]({served.servers.mlflow_uri}/#/experiments/" in shown
    assert "Waive the gate, with a reason, and the run goes on; reject the model and the run ends." in shown

    answer = {"decision": "waive", "by": "Ada", "reason": "only a smoke test"}
    assert served.client.resume_flow_run(run, run_input=answer).status.value == "ACCEPT"
    assert served.ended(run, timeout_s=LIMIT_S) == "Completed", served.message(run)
    record = last_record(served.folder / "outputs/judged")
    assert record is not None
    assert [gate.outcome_text for gate in record.gates] == ["waived by the fault tests", "waived by Ada"]
    assert (StageName.TRAIN_POLICY.value, "Reused") in served.stages(run)
    assert len(receiver.received) == 1
