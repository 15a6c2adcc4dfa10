"""`rlhf cache` as a person reads it: adapters on base models stand below the artifacts, and are freed with them."""

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli.cache import collect_garbage, list_store
from tasks.sources.adapter_folders import adapters_root

LONG_AGO = time.time() - 30 * 86_400


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def unused_adapter(base: Path) -> Path:
    """With weights of its own, and those of its base model as a link."""
    folder = adapters_root() / "my-adapter-0123456789abcdef"
    (folder / "base").mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"a" * 2048)
    base.write_bytes(b"w" * 4096)
    os.link(base, folder / "base" / "model.safetensors")
    os.utime(folder, (LONG_AGO, LONG_AGO))
    return folder


def listed(store: Path) -> str:
    text = io.StringIO()
    assert list_store(store, Console(file=text, width=200)) == 0
    return text.getvalue()


def collected(store: Path, *, delete: bool) -> str:
    text = io.StringIO()
    assert collect_garbage(store, Console(file=text, width=200), older_than_days=7, delete=delete) == 0
    return text.getvalue()


def test_the_list_has_adapters_with_what_they_take_and_what_they_share(store: Path, tmp_path: Path) -> None:
    assert "on its base model" not in listed(store)
    unused_adapter(tmp_path / "model.safetensors")
    text = listed(store)
    assert "holds no artifact" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("my-adapter")]
    assert row[0] == "my-adapter-0123456789abcdef"
    assert row[3:] == ["2.00", "KiB", "4.00", "KiB", "none"]


def test_garbage_is_told_first_and_deleted_only_when_that_is_said(store: Path, tmp_path: Path) -> None:
    folder = unused_adapter(tmp_path / "model.safetensors")
    text = collected(store, delete=False)
    assert "my-adapter-0123456789abcdef: last used 30 days ago, and no run of this store wants it" in text
    assert "2.00 KiB would be freed" in text
    assert folder.is_dir()
    assert "2.00 KiB freed." in collected(store, delete=True)
    assert not folder.exists()
    assert (tmp_path / "model.safetensors").stat().st_size == 4096
    assert "Nothing can go" in collected(store, delete=True)
