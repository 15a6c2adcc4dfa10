"""A run that Prefect starts has no terminal: its lines stand in the log, each once."""

import logging

import pytest

from containers.contracts.names import StageName
from containers.contracts.records import StageRecord
from flows.serving.form_run import LogDisplay


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_a_stage_says_when_it_starts_and_what_became_of_it(said: pytest.LogCaptureFixture) -> None:
    display = LogDisplay()
    display.stage_started(StageName.TRAIN_SFT, "process, attempt 1: never made")
    display.stage_progress(StageName.TRAIN_SFT, 1, 2, "steps")
    display.stage_ended(StageRecord(stage=StageName.TRAIN_SFT, status="ran", duration_s=4.2))
    display.stage_ended(StageRecord(stage=StageName.TRAIN_POLICY, status="failed", message="diverged at step 3"))
    assert said.messages == [
        "train_sft starts: process, attempt 1: never made",
        "train_sft done in 4 s",
        "train_policy failed: diverged at step 3",
    ]


def test_what_stands_in_the_log_already_is_not_said_again(said: pytest.LogCaptureFixture) -> None:
    display = LogDisplay()
    display.stage_ended(StageRecord(stage=StageName.TRAIN_SFT, status="reused"))
    display.say("2,378 rows read", is_logged=True)
    display.say("Fetching a model")
    assert said.messages == ["Fetching a model"]


def test_the_columns_of_a_terminal_are_no_columns_in_a_log(said: pytest.LogCaptureFixture) -> None:
    LogDisplay().say("Runtime  process\n  indented")
    assert said.messages == ["Runtime process\n  indented"]
