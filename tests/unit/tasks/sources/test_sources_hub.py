"""A run is repeatable only if its model and data are pinned to content, and honest only if a wrong source is named."""

import gzip
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub

from tasks.config.sources import DatasetSource, ModelSource
from tasks.sources.errors import (
    HubUnreachableError,
    SourceAccessError,
    SourceError,
    SourceNotFoundError,
    UnusableSourceError,
)
from tasks.sources.hub import hub_cache
from tasks.sources.resolve import probe_dataset, probe_model, resolve_dataset, resolve_model

ROWS = b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n'
MODEL = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": b"weights" * 100,
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
    "generation_config.json": b'{"eos_token_id": 1}',
}
NEVER_FETCHED = {
    "pytorch_model.bin": b"pickle",
    "modeling_custom.py": b"import os",
    "tokenizer.py": b"import os",
    "checkpoint-5/model.safetensors": b"old",
    "consolidated.safetensors": b"again",
    "README.md": b"hello",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.chdir(tmp_path)
        yield fake


def _model(revision: str = "main") -> ModelSource:
    return ModelSource(hub_id="org/tiny", revision=revision)


def _dataset(revision: str = "main", **changes: str) -> DatasetSource:
    return DatasetSource(**{"hub_id": "org/rows", "revision": revision, "train": "preference/train.jsonl"} | changes)


def test_a_branch_is_resolved_to_its_commit_and_only_safe_files_are_fetched(hub: FakeHub) -> None:
    commit = hub.commit("models", "org/tiny", MODEL | NEVER_FETCHED)
    found = resolve_model(_model(), token=None)
    assert found.digest == f"hub:{commit}"
    assert found.origin == f"org/tiny@{commit}"
    assert {path.name: path.read_bytes() for path in found.path.rglob("*")} == MODEL
    assert set(hub.downloads()) == set(MODEL)


def test_fetched_files_are_plain_files_that_survive_being_mounted_alone(hub: FakeHub) -> None:
    hub.commit("models", "org/tiny", MODEL)
    folder = resolve_model(_model(), token=None).path
    assert all(path.is_file() and not path.is_symlink() for path in folder.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o755
    blob = next((hub_cache() / "models--org--tiny" / "blobs").iterdir())
    assert blob.stat().st_nlink == 2  # linked, not copied


def test_a_branch_that_moves_gives_other_content_and_the_old_commit_stays_what_it_was(hub: FakeHub) -> None:
    first = hub.commit("models", "org/tiny", MODEL)
    before = resolve_model(_model(), token=None)
    second = hub.commit("models", "org/tiny", MODEL | {"model.safetensors": b"other"})
    after = resolve_model(_model(), token=None)
    assert (before.digest, after.digest) == (f"hub:{first}", f"hub:{second}")
    assert (after.path / "model.safetensors").read_bytes() == b"other"
    assert (before.path / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert resolve_model(_model(first), token=None) == before


def test_a_pinned_commit_that_was_fetched_needs_no_hub_any_more(hub: FakeHub) -> None:
    model = hub.commit("models", "org/tiny", MODEL)
    data = hub.commit("datasets", "org/rows", {"preference/train.jsonl": ROWS})
    fetched = resolve_model(_model(model), token=None), resolve_dataset(_dataset(data), token=None)
    hub.stop()
    assert (resolve_model(_model(model), token=None), resolve_dataset(_dataset(data), token=None)) == fetched
    assert probe_model(_model(model), token=None).missing_bytes == 0
    with pytest.raises(HubUnreachableError, match=f"Fetched before, so usable as revision without a network: {model}"):
        resolve_model(_model("main"), token=None)


def test_a_hub_id_never_opens_a_local_folder_of_that_name(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    for name, data in MODEL.items():
        (tmp_path / "org" / "tiny" / name).write_bytes(data)
    with pytest.raises(SourceNotFoundError, match="does not exist on the hub"):
        resolve_model(_model(), token=None)
    with pytest.raises(SourceNotFoundError, match="does not exist on the hub"):
        probe_model(_model(), token=None)


def test_one_file_comes_as_a_file_and_many_come_as_a_folder(hub: FakeHub) -> None:
    files = {f"data/train-{i}.jsonl": ROWS for i in range(3)} | {"data/test.jsonl": ROWS, "data/train.py": b"import os"}
    commit = hub.commit("datasets", "org/rows", files)
    train, validation = resolve_dataset(_dataset(train="data/train*", validation="data/test.jsonl"), token=None)
    assert (train.name, validation.name) == ("train_data", "validation_data")
    assert sorted(path.name for path in train.path.rglob("*.*")) == ["train-0.jsonl", "train-1.jsonl", "train-2.jsonl"]
    assert validation.path.read_bytes() == ROWS and validation.path.name == "test.jsonl"
    assert train.digest == f"hub:{commit}:data/train*"
    assert validation.origin == f"org/rows@{commit} data/test.jsonl"
    assert train.digest != validation.digest


def test_a_pattern_without_data_says_what_the_repository_holds(hub: FakeHub) -> None:
    hub.commit("datasets", "org/rows", {"preference/train.jsonl": ROWS, "README.md": b"x"})
    with pytest.raises(SourceNotFoundError) as caught:
        resolve_dataset(_dataset(validation="preference/valid.jsonl.gz"), token=None)
    assert "dataset.validation" in str(caught.value)
    assert "it holds: preference/train.jsonl" in str(caught.value)


def test_a_probe_downloads_no_data_and_no_weights(hub: FakeHub) -> None:
    model = hub.commit("models", "org/tiny", MODEL)
    data = hub.commit("datasets", "org/rows", {"preference/train.jsonl": ROWS * 1000})
    found = probe_model(_model(), token=None)
    assert found.missing_bytes == sum(len(data) for data in MODEL.values())
    assert found.found.startswith(f"org/tiny@{model}")
    rows = probe_dataset(_dataset(), token=None)
    assert rows.missing_bytes == 1000 * len(ROWS)
    assert rows.found == f"org/rows@{data}: preference/train.jsonl (1 file, 46.9 KiB)"
    assert set(hub.downloads()) == {"config.json", "tokenizer_config.json"}
    resolve_model(_model(), token=None)
    assert probe_model(_model(), token=None).missing_bytes == 0


@pytest.mark.parametrize("call", [probe_model, resolve_model])
def test_each_refusal_of_the_hub_is_told_apart(hub: FakeHub, call: object) -> None:
    assert callable(call)
    with pytest.raises(SourceNotFoundError, match=r"org/tiny@main does not exist on the hub.*No token is set"):
        call(_model(), token=None)
    with pytest.raises(SourceNotFoundError, match=r"does not exist on the hub.*The token in use has no access"):
        call(_model(), token="hf_wrong")
    hub.commit("models", "org/tiny", MODEL)
    with pytest.raises(SourceNotFoundError, match=r"org/tiny@nope.*the revision does not.*base_model.revision"):
        call(_model("nope"), token=None)
    repository = hub.repositories["models", "org/tiny"]
    repository.token, repository.gated = "hf_right", True
    with pytest.raises(SourceAccessError, match=r"gated.*HF_TOKEN"):
        call(_model(), token=None)
    with pytest.raises(SourceAccessError, match=r"gated. The token in use has no access"):
        call(_model(), token="hf_wrong")
    assert call(_model(), token="hf_right")


def test_a_private_repository_opens_with_its_token(hub: FakeHub) -> None:
    hub.commit("datasets", "org/rows", {"preference/train.jsonl": ROWS})
    hub.repositories["datasets", "org/rows"].token = "hf_right"
    with pytest.raises(SourceNotFoundError, match=r"dataset.hub_id"):
        resolve_dataset(_dataset(), token=None)
    assert resolve_dataset(_dataset(), token="hf_right")[0].path.read_bytes() == ROWS


def test_no_message_holds_the_token(hub: FakeHub) -> None:
    with pytest.raises(SourceError) as caught:
        resolve_model(_model(), token="hf_secret_canary")
    texts = [str(caught.value), str(caught.value.__cause__)]
    assert not any("hf_secret_canary" in text for text in texts)


def test_a_hub_that_fails_or_is_away_is_named_as_such(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.status = 500
    with pytest.raises(HubUnreachableError, match="status 500"):
        resolve_model(_model(), token=None)
    hub.status = 429
    with pytest.raises(HubUnreachableError, match="too many requests"):
        probe_dataset(_dataset(), token=None)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(HubUnreachableError, match=r"cannot be read.*HF_ENDPOINT"):
            resolve_model(_model(), token=None)


def test_a_dataset_that_was_fetched_is_looked_into_and_one_that_was_not_is_not(hub: FakeHub) -> None:
    commit = hub.commit("datasets", "org/rows", {"preference/train.jsonl": ROWS * 3})
    assert "TRL" not in probe_dataset(_dataset(), token=None).found
    resolve_dataset(_dataset(), token=None)
    found = probe_dataset(_dataset(), token=None)
    assert found.found == (
        f"org/rows@{commit}: preference/train.jsonl (1 file, {3 * len(ROWS)} bytes, TRL preference, 3 rows, fetched)"
    )
    assert found.missing_bytes == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"question": "a"}\n', "preference/train.jsonl has no schema that is known here. Columns found: question"),
        (gzip.compress(ROWS * 5000)[:-9], "preference/train.jsonl is a damaged gzip file"),
        (b"<!DOCTYPE html><html>", r"preference/train.jsonl is a web page \(HTML\)"),
    ],
)
def test_downloaded_data_that_no_stage_could_read_stop_the_run_before_its_first_stage(
    hub: FakeHub, data: bytes, message: str
) -> None:
    commit = hub.commit("datasets", "org/rows", {"preference/train.jsonl": data})
    for look in (resolve_dataset, probe_dataset):  # the second finds it fetched
        with pytest.raises(UnusableSourceError, match=f"dataset.train: org/rows@{commit} {message}"):
            look(_dataset(), token=None)


def test_a_damaged_download_is_not_taken_for_the_commit(hub: FakeHub) -> None:
    hub.commit("datasets", "org/rows", {"preference/train.jsonl": ROWS})
    resolve_dataset(_dataset(), token=None)
    shutil.rmtree(hub_cache().parent / "rlhf-snapshots")
    (blob,) = (hub_cache() / "datasets--org--rows" / "blobs").iterdir()
    blob.write_bytes(b"half")
    with pytest.raises(HubUnreachableError, match=f"{len(ROWS)} bytes on the hub and 4 here"):
        resolve_dataset(_dataset(), token=None)


def test_listing_of_a_commit_that_was_damaged_is_asked_for_again(hub: FakeHub) -> None:
    commit = hub.commit("models", "org/tiny", MODEL)
    resolve_model(_model(commit), token=None)
    (listing,) = (hub_cache().parent / "rlhf-snapshots").rglob("files.json")
    listing.write_text(json.dumps({"kind": "model"}))
    hub.requests.clear()
    assert resolve_model(_model(commit), token=None).digest == f"hub:{commit}"
    assert any("/revision/" in request for request in hub.requests)


# --- weights, tokenizer, template: the same rules for the hub and for folders


@pytest.mark.parametrize(
    ("drop", "add", "message"),
    [
        (("config.json",), {}, "no config.json"),
        (("config.json",), {"config.json": b"{"}, "config.json of .* is no JSON"),
        (("model.safetensors",), {}, "no weights as safetensors: none"),
        (
            ("model.safetensors",),
            {"pytorch_model.bin": b"x"},
            "only pytorch_model.bin, and loading pickle executes code",
        ),
        (("tokenizer.json",), {}, "no tokenizer"),
        (("tokenizer_config.json",), {}, "no chat template"),
        ((), {"tokenizer_config.json": b"{}"}, "no chat template"),
        (
            (),
            {"model.safetensors.index.json": b'{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'},
            "1 of 2 weight files .* are missing, the first is model-2.safetensors",
        ),
    ],
)
def test_a_model_that_cannot_be_started_from_is_refused_wherever_it_lies(
    hub: FakeHub, tmp_path: Path, drop: tuple[str, ...], add: dict[str, bytes], message: str
) -> None:
    files = {name: data for name, data in MODEL.items() if name not in drop} | add
    hub.commit("models", "org/tiny", files)
    for name, data in files.items():
        (tmp_path / "local").mkdir(exist_ok=True)
        (tmp_path / "local" / name).write_bytes(data)
    for source in (_model(), ModelSource(path=str(tmp_path / "local"))):
        with pytest.raises(UnusableSourceError, match=message):
            probe_model(source, token=None)
        with pytest.raises(UnusableSourceError, match=message):
            resolve_model(source, token=None)


def test_a_template_in_its_own_file_is_a_template(hub: FakeHub) -> None:
    files = {name: data for name, data in MODEL.items() if name != "tokenizer_config.json"}
    hub.commit("models", "org/tiny", files | {"chat_template.jinja": b"{{ messages }}"})
    assert (resolve_model(_model(), token=None).path / "chat_template.jinja").is_file()
