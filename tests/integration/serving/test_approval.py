"""GPU days wait for one word of a person: it must be asked for, found again, counted once, and never be made up.

Real Prefect server, real served deployment, real pipeline; only the model is tiny, and trained once for all tests. Each
test has its own gate rules, so no decision of one counts in another.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from approval_place import LIMIT_S, Place, Receiver, opened_place, wait_for
from prefect import flow
from prefect.blocks.webhook import Webhook
from prefect.states import AwaitingRetry, Cancelling

from containers.contracts.names import StageName
from containers.contracts.records import GateVerdict
from tasks.gates.prefect_form import suspend
from tasks.prefect_sync.api import PrefectApi, present_flow_run
from tasks.prefect_sync.state import settle_the_dead
from tasks.store.decisions import Question

pytestmark = [pytest.mark.slow, pytest.mark.stages]

EVERYTHING_PASSES, EVERYTHING_MISSES = 0.001, 0.999
EXIT_CLOSED, EXIT_BAD_CONFIG, EXIT_WAITS = 1, 2, 3


def gate(minimum: float, approval: str = "required", *more: str) -> tuple[str, ...]:
    """The gate's settings as changes of the configuration."""
    settings = (f"minimum_accuracy={minimum}", f"approval={approval}", *more)
    return tuple(f"gates.reward_model.{setting}" for setting in settings)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[Place]:
    with opened_place(tmp_path_factory.mktemp("approval"), project) as place:
        trained = place.rlhf("run", "trained", rules=gate(0.0, "none"))
        assert trained.returncode == 0, trained.stdout + trained.stderr
        yield place


@pytest.fixture(scope="module")
def deployment(place: Place) -> Iterator[None]:
    """The pipeline served as a deployment, whose runs can be suspended."""
    with place.served():
        yield


def test_a_run_in_a_terminal_waits_for_a_decision_and_goes_on_with_it(place: Place) -> None:
    rules = gate(EVERYTHING_PASSES)
    waiting = place.rlhf("run", "terminal", rules=rules)
    assert waiting.returncode == EXIT_WAITS, waiting.stdout + waiting.stderr
    assert "rlhf approve -c configs/runs/tiny.yaml" in waiting.stdout
    assert "The run waits for a person to decide about the reward model." in place.page("terminal")
    (shown,) = [run for run in place.client.read_flow_runs() if run.state_name == "WaitsForDecision"]
    assert shown.state is not None and "run.name=terminal" in (shown.state.message or "")
    ((status, tags),) = place.mlflow_tags("terminal")
    assert (status, tags["rlhf.ended_waiting_for"]) == ("FINISHED", "a decision about the reward model")

    asked = place.rlhf("approve", "terminal", rules=rules)
    assert "waits at its gate" in asked.stdout and "on 384 pairs" in asked.stdout
    unfit = place.rlhf("approve", "terminal", "--waive", "--by", "Ada", "--reason", "so", rules=rules)
    assert (unfit.returncode, "nothing to waive" in unfit.stderr) == (EXIT_BAD_CONFIG, True)
    first = place.rlhf("approve", "terminal", "--approve", "--by", "Ada", "--reason", "good enough", rules=rules)
    assert first.returncode == 0, first.stderr
    second = place.rlhf("approve", "terminal", "--reject", "--by", "Bob", "--reason", "never", rules=rules)
    assert (second.returncode, "already approved by Ada" in second.stderr) == (EXIT_CLOSED, True)

    done = place.rlhf("run", "terminal", rules=rules)
    assert done.returncode == 0, done.stdout + done.stderr
    (verdict,) = place.record("terminal").gates
    assert verdict.decision is not None and (verdict.outcome_text, verdict.decision.reason) == (
        "approved by Ada",
        "good enough",
    )
    assert "passed and approved" in place.page("terminal")
    assert place.mlflow_tags("terminal")[-1][1]["rlhf.gate.reward_model"] == "approved by Ada"

    changed = place.rlhf(
        "approve", "terminal", "--reject", "--by", "Bob", "--reason", "biased", "--replace", rules=rules
    )
    assert changed.returncode == 0, changed.stderr
    rejected = place.rlhf("run", "terminal", rules=rules)
    assert rejected.returncode == EXIT_CLOSED
    assert "rejected at its gate by Bob" in rejected.stdout and "biased" in rejected.stdout
    assert "approved by Ada" in place.page("terminal")  # both stay on record


def test_silence_rejects_and_a_late_word_still_counts(place: Place) -> None:
    rules = gate(EVERYTHING_MISSES, "when_closed", "approval_timeout_h=0.001")
    assert place.rlhf("run", "silence", rules=rules).returncode == EXIT_WAITS
    late = place.rlhf("run", "silence", rules=rules)
    assert late.returncode == EXIT_CLOSED
    assert "No decision about the reward model came by" in late.stdout
    assert "No decision about the reward model came in time" in place.page("silence")
    word = place.rlhf("approve", "silence", "--waive", "--by", "Ada", "--reason", "a smoke test", rules=rules)
    assert word.returncode == 0, word.stderr
    assert place.rlhf("run", "silence", rules=rules).returncode == 0
    assert place.record("silence").gates[0].outcome_text == "waived by Ada"


def test_a_suspended_run_survives_a_restart_of_the_server_and_goes_on_when_approved(
    place: Place, deployment: None
) -> None:
    run_id = place.start("approved", *gate(0.002))
    place.wait_for_state(run_id, "Suspended")
    # The state is Suspended a moment before the process has ended everything else.
    wait_for(lambda: [status for status, _ in place.mlflow_tags("approved")] == ["FINISHED"], timeout_s=LIMIT_S)
    folder = place.folder / "outputs" / "approved" / "prefect_pending"
    assert settle_the_dead(folder, PrefectApi(), flow_name="rlhf") == []
    place.prefect.kill()
    place.prefect.start()
    assert place.flow_run(run_id).state_name == "Suspended"
    assert "'by' is a required property" in place.answer(run_id, decision="approve")
    assert place.answer(run_id, decision="approve", by="Ada") == ""
    assert "not paused" in place.answer(run_id, decision="reject", by="Bob", reason="never")
    second = place.rlhf("approve", "approved", "--reject", "--by", "Bob", "--reason", "never", rules=gate(0.002))
    assert (second.returncode, "already approved by Ada" in second.stderr) == (EXIT_CLOSED, True)
    place.wait_for_state(run_id, "Completed")
    assert place.record("approved").gates[0].outcome_text == "approved by Ada"
    first, second = place.mlflow_tags("approved")
    assert "rlhf.ended_waiting_for" in first[1]
    assert second[1]["rlhf.goes_on_from_run"]


def test_a_suspended_run_ends_when_it_is_rejected_which_demands_a_reason(place: Place, deployment: None) -> None:
    run_id = place.start("rejected", *gate(0.003))
    place.wait_for_state(run_id, "Suspended")
    assert "reason" in place.answer(run_id, decision="reject", by="Bob")
    assert place.answer(run_id, decision="reject", by="Bob", reason="it loves long answers") == ""
    run = place.wait_for_state(run_id, "Failed")
    assert run.state is not None and "rejected at its gate by Bob" in (run.state.message or "")
    assert "it loves long answers" in place.page("rejected")
    assert all(stage.stage is not StageName.TRAIN_POLICY for stage in place.record("rejected").stages)


def test_a_waiver_in_a_terminal_resumes_the_suspended_run(place: Place, deployment: None) -> None:
    rules = gate(0.998, "when_closed")
    run_id = place.start("waived", *rules)
    place.wait_for_state(run_id, "Suspended")
    assert "is not one of ['waive', 'reject']" in place.answer(run_id, decision="approve", by="Ada", reason="so what")
    bare = place.rlhf("approve", "waived", "--waive", "--by", "Ada", rules=rules)
    assert (bare.returncode, "has no reason" in bare.stderr) == (EXIT_BAD_CONFIG, True)
    given = place.rlhf("approve", "waived", "--waive", "--by", "Ada", "--reason", "a smoke test", rules=rules)
    assert "goes on" in given.stdout, given.stdout + given.stderr
    place.wait_for_state(run_id, "Completed")
    (verdict,) = place.record("waived").gates
    assert (verdict.passed, verdict.outcome_text, verdict.waiver_reason) == (False, "waived by Ada", "a smoke test")


def test_a_suspended_run_that_nobody_answers_fails_and_a_retry_says_why(place: Place, deployment: None) -> None:
    run_id = place.start("forgotten", *gate(0.004, "required", "approval_timeout_h=0.005"))
    place.wait_for_state(run_id, "Suspended", "Failed")
    assert "Without a decision by" in place.page("forgotten")
    run = place.wait_for_state(run_id, "Failed")
    assert run.state is not None and "never resumed" in (run.state.message or "")
    retry = subprocess.run(
        [sys.executable, "-m", "prefect", "flow-run", "retry", str(run_id)],
        env=place.environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert retry.returncode == 0, retry.stdout + retry.stderr
    wait_for(lambda: "No decision about" in (place.flow_run(run_id).state.message or ""), timeout_s=LIMIT_S)  # type: ignore[union-attr]
    assert "No decision about the reward model came in time" in place.page("forgotten")


def test_a_suspended_run_that_is_cancelled_asks_again_when_it_is_retried(place: Place, deployment: None) -> None:
    rules = gate(0.008)
    run_id = place.start("cancelled", *rules)
    place.wait_for_state(run_id, "Suspended")
    place.press(run_id, Cancelling())
    assert place.flow_run(run_id).state_name == "Cancelled"
    assert "not paused" in place.answer(run_id, decision="approve", by="Ada")

    place.press(run_id, AwaitingRetry())
    place.wait_for_state(run_id, "Suspended")
    assert "'by' is a required property" in place.answer(run_id, decision="approve")  # the form is there again
    place.press(run_id, Cancelling())
    given = place.rlhf("approve", "cancelled", "--approve", "--by", "Ada", rules=rules)
    assert f"{run_id} is Cancelled. Press Retry on its page" in given.stdout, given.stdout + given.stderr
    place.press(run_id, AwaitingRetry())
    place.wait_for_state(run_id, "Completed")
    assert place.record("cancelled").gates[0].outcome_text == "approved by Ada"


def test_the_form_is_there_before_the_run_is_suspended(place: Place) -> None:
    """A run without a deployment is refused the suspension, so what is there was there before."""
    asked: dict[str, UUID] = {}

    @flow(name="asks", persist_result=True)
    def asks() -> str:
        run = present_flow_run()
        assert run is not None
        asked["run"] = run.id
        verdict = GateVerdict(name="policy", passed=False, rules=())
        question = Question(
            key="ab" * 32, verdict=verdict, rules={}, run_name="asks", run_id="1", output_dir="/nowhere",
            asked_at="2026-11-21T11:29:00+00:00", flow_run_id=str(run.id),
        )  # fmt: skip
        return suspend(question)

    assert "without a deployment" in asks()
    forms = place.client.filter_flow_run_input(asked["run"], key_prefix="suspended-", limit=10, exclude_keys=set())
    assert sorted(item.key.rpartition("-")[2] for item in forms) == ["description", "schema"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()


def test_people_are_told_once_with_figures_and_trouble_with_that_stops_no_run(place: Place, receiver: Receiver) -> None:
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    CustomWebhookNotificationBlock(
        name="people",
        url=receiver.url,
        json_data={"title": "{{subject}}", "text": "{{body}}"},
        allow_private_urls=True,
    ).save("people", overwrite=True)
    rules = gate(0.005, "required", "notify=custom-webhook/people")
    receiver.status = 500
    troubled = place.rlhf("run", "told", rules=rules)
    assert troubled.returncode == EXIT_WAITS, troubled.stdout + troubled.stderr
    assert "custom-webhook/people notified no one" in troubled.stdout
    assert "secret-path" not in troubled.stdout + troubled.stderr
    receiver.status = 200
    receiver.received.clear()
    for _ in range(2):
        assert place.rlhf("run", "told", rules=rules).returncode == EXIT_WAITS
    (told,) = receiver.received
    assert "the reward model waits for a decision" in json.loads(told)["title"]
    assert "pairs of 48 prompts" in json.loads(told)["text"] and "wanted interval from" in json.loads(told)["text"]
    assert "flow-run/" in json.loads(told)["text"]

    events = place.client.request(
        "POST", "/events/filter", json={"filter": {"event": {"name": ["rlhf.gate.waiting"]}}}
    ).json()["events"]
    mine = [event for event in events if event["resource"]["rlhf.run_name"] == "told"]
    assert mine and any(item["prefect.resource.role"] == "flow-run" for item in mine[0]["related"])


def test_a_block_that_is_not_there_is_told_before_any_stage(place: Place) -> None:
    ended = place.rlhf("run", "blockless", rules=gate(0.006, "required", "notify=slack-webhook/nowhere"))
    assert ended.returncode == 1
    assert "nothing was spent" in ended.stdout
    assert "Make it in Prefect under Blocks (type `slack-webhook`, name `nowhere`)" in ended.stdout
    assert not (place.folder / "outputs" / "blockless" / "reports").exists()
    checked = place.rlhf("check", "blockless", rules=gate(0.006, "required", "notify=slack-webhook/nowhere"))
    assert checked.returncode == 1
    assert "no block `slack-webhook/nowhere` in Prefect" in checked.stdout
    assert "Make it in Prefect under Blocks (type `slack-webhook`, name `nowhere`)" in checked.stdout


def test_a_block_that_notifies_nobody_is_said_and_the_run_waits(place: Place) -> None:
    Webhook(url="http://127.0.0.1:9").save("mute", overwrite=True)
    checked = place.rlhf("check", "mute", rules=gate(0.007, "required", "notify=webhook/mute"))
    assert (checked.returncode, "which cannot notify anybody" in checked.stdout) == (0, True), checked.stdout
    ended = place.rlhf("run", "mute", rules=gate(0.007, "required", "notify=webhook/mute"))
    assert ended.returncode == EXIT_WAITS, ended.stdout + ended.stderr
    assert "webhook/mute cannot notify anybody" in ended.stdout
