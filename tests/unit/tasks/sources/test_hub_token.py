"""The hub's token opens the hub and stands in no error, nor in what is behind an error: both end up in logs."""

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError

from tasks.config.sources import DatasetSource
from tasks.sources.errors import HubUnreachableError, SourceAccessError
from tasks.sources.hub import hub_token
from tasks.sources.resolve import probe_dataset, resolve_dataset

TOKEN = "hf_canary41d7"
ROWS = DatasetSource(hub_id="org/rows", revision="main", train="train.jsonl")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        fake.commit("datasets", "org/rows", {"train.jsonl": b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n'})
        yield fake


def test_a_hub_that_repeats_the_token_is_told_without_it_and_without_the_error_that_holds_it(hub: FakeHub) -> None:
    hub.status, hub.repeats_tokens = 400, True
    with pytest.raises(HubUnreachableError, match="the hub answers with status 400") as caught:
        resolve_dataset(ROWS, token=TOKEN)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_an_error_without_the_token_stays_the_cause(hub: FakeHub) -> None:
    hub.status = 400
    with pytest.raises(HubUnreachableError) as caught:
        resolve_dataset(ROWS, token=TOKEN)
    assert isinstance(caught.value.__cause__, HfHubHTTPError)


@pytest.mark.parametrize("token", [f"{TOKEN}\nX-Other: 1", f"{TOKEN} ", f"{TOKEN}…"])
def test_what_cannot_be_a_token_is_refused_before_it_is_sent_and_not_shown(hub: FakeHub, token: str) -> None:
    with pytest.raises(SourceAccessError, match="that no token has") as caught:
        probe_dataset(ROWS, token=token)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))
    assert hub.requests == []


def test_the_environment_comes_before_what_was_stored_by_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hf_stored")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert hub_token() == "hf_stored"
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    assert hub_token() == "hf_of_the_environment"


@pytest.mark.waits
def test_a_prefect_that_does_not_answer_costs_the_run_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text("hf_stored")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert hub_token() == "hf_stored"
    assert "Prefect could not be queried for the Secret block rlhf-hub-token" in caplog.text
