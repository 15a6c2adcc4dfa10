"""What a run needs from the hub can be had beforehand, and what cannot be had is said before gigabytes are."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub

from flows.cli import machine
from flows.cli.main import main

MODEL, DATASET = "org/tiny", "org/rows"
WEIGHTS = b"weights" * 1000
ROWS = b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 40
MODEL_FILES = {
    "config.json": b'{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
}


@dataclass(frozen=True)
class Place:
    """A run's file, and the hub that it names."""

    config: Path
    hub: FakeHub
    model_commit: str
    rows_commit: str

    def fetch(self, *options: str, revisions: Sequence[str] = ("main", "main")) -> int:
        """The exit code of `rlhf fetch`."""
        pinned = [f"base_model.revision={revisions[0]}", f"dataset.revision={revisions[1]}"]
        return main(["fetch", "-c", str(self.config), *(word for one in pinned for word in ("--set", one)), *options])


@pytest.fixture
def place(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    shutil.copytree(project / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    config = tmp_path / "run.yaml"
    run = {
        "run": {"name": "beforehand"},
        "gpu_profile": "cpu",
        "base_model": {"hub_id": MODEL, "revision": "main"},
        "dataset": {"hub_id": DATASET, "revision": "main", "train": "train.jsonl", "validation": "validation.jsonl"},
    }
    config.write_text(json.dumps(run))
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        rows = hub.commit("datasets", DATASET, {"train.jsonl": ROWS, "validation.jsonl": ROWS[: len(ROWS) // 2]})
        yield Place(config, hub, hub.commit("models", MODEL, MODEL_FILES), rows)


def test_a_look_beforehand_says_what_would_be_downloaded_from_which_mirror(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.fetch("--dry-run") == 0
    said = capsys.readouterr().out
    assert f"{MODEL}@{place.model_commit}" in said
    assert f"{DATASET}@{place.rows_commit}" in said
    assert f"from {place.hub.url}" in said
    assert not {"model.safetensors", "train.jsonl", "validation.jsonl"} & set(place.hub.downloads())


def test_what_was_fetched_by_its_commit_needs_no_hub_any_more(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.fetch() == 0
    said = capsys.readouterr().out
    assert {"model.safetensors", "train.jsonl", "validation.jsonl"} <= set(place.hub.downloads())
    assert f"base_model: revision {place.model_commit}  (now main, of {MODEL})" in said
    assert f"dataset: revision {place.rows_commit}  (now main, of {DATASET})" in said
    place.hub.stop()
    assert place.fetch(revisions=(place.model_commit, place.rows_commit)) == 0
    said = capsys.readouterr().out
    assert said.count("; here") == 2
    assert "All is here, by commits: a run of this configuration needs no hub" in said


@pytest.mark.parametrize(("kind", "name"), [("models", MODEL), ("datasets", DATASET)])
def test_a_gated_repository_is_named_before_anything_is_downloaded(
    place: Place, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    repository = place.hub.repositories[kind, name]
    repository.token, repository.gated = "hf_other", True
    assert place.fetch() == 1
    said = capsys.readouterr().err
    assert "Nothing was fetched." in said
    assert f"{name}@" in said
    assert "is gated" in said
    assert not {"model.safetensors", "train.jsonl", "validation.jsonl"} & set(place.hub.downloads())


def test_all_that_cannot_be_had_is_said_at_once(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.fetch("--set", "base_model.hub_id=org/other", "--set", "dataset.train=no.jsonl") == 1
    said = capsys.readouterr().err
    assert "org/other@main does not exist" in said
    assert "'no.jsonl'" in said
    assert "it holds: train.jsonl, validation.jsonl" in said


def test_a_disk_that_is_too_small_is_seen_before_the_first_byte(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place.config.parent)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage._replace(free=len(WEIGHTS)))
    assert place.fetch() == 1
    assert "set HF_HOME" in capsys.readouterr().err
    assert "model.safetensors" not in place.hub.downloads()


@pytest.mark.waits
def test_a_download_that_breaks_goes_on_with_the_next_fetch(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.hub.cut_off_after = len(WEIGHTS) // 2
    assert place.fetch() == 1
    assert "`rlhf fetch` goes on from there" in capsys.readouterr().err
    place.hub.cut_off_after = None
    assert place.fetch() == 0


def test_data_on_this_disk_is_looked_at_and_left_where_it_is(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train.jsonl", "validation.jsonl"):
        (place.config.parent / name).write_bytes(ROWS)
    local = "dataset={train: train.jsonl, validation: validation.jsonl}"
    assert main(["fetch", "-c", str(place.config), "--set", local]) == 0
    said = capsys.readouterr().out
    assert "train.jsonl" in said
    assert not any("datasets" in line for line in place.hub.requests)
