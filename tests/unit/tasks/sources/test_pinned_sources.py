"""What a branch is now is asked once, so that a stage's key and what it was made from cannot drift apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub

from tasks.sources.errors import SourceNotFoundError
from tasks.sources.pinned import commit_of_now


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        yield fake


def test_a_branch_is_the_commit_that_it_has_now_and_a_commit_is_itself(hub: FakeHub) -> None:
    old = hub.commit("models", "org/base", {"config.json": b"{}"})
    assert commit_of_now("model", "org/base", "main", token=None) == old
    new = hub.commit("models", "org/base", {"config.json": b"{ }"})
    assert commit_of_now("model", "org/base", "main", token=None) == new
    asked = len(hub.requests)
    assert commit_of_now("model", "org/base", old, token=None) == old
    assert len(hub.requests) == asked


def test_a_branch_that_is_not_there_is_named(hub: FakeHub) -> None:
    hub.commit("models", "org/base", {"config.json": b"{}"})
    with pytest.raises(SourceNotFoundError, match="org/base@weekly"):
        commit_of_now("model", "org/base", "weekly", token=None)
