"""A block that is not there is told before anything is spent, and only what was looked up is called there."""

import pytest

from tasks.config.gates import Gates
from tasks.gates.notice import block_finding, notify_blocks

NOBODY_LISTENS = "http://127.0.0.1:9/api"


def test_only_gates_that_ask_a_person_have_a_block_to_look_up() -> None:
    gates = Gates.model_validate(
        {
            "reward_model": {"approval": "none", "notify": "slack-webhook/ml"},
            "policy": {"approval": "required", "notify": "slack-webhook/ml"},
        }
    )
    assert notify_blocks(gates) == (("policy", "slack-webhook/ml"),)
    assert notify_blocks(Gates()) == ()


def test_without_a_server_the_block_is_said_to_be_looked_up_later() -> None:
    row = block_finding("policy", "slack-webhook/ml", None)
    assert (row.name, row.verdict) == ("gate policy", "ok")
    assert "looked up once the run has started Prefect" in row.found


@pytest.mark.waits
def test_a_server_that_does_not_answer_makes_the_block_neither_there_nor_missing() -> None:
    row = block_finding("policy", "slack-webhook/ml", NOBODY_LISTENS)
    assert row.verdict == "warning"
    assert "`slack-webhook/ml`, not looked up (ConnectError)" in row.found
