"""A local source is known by its content, and what cannot be mounted or read is said before anything starts."""

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from tasks.config.sources import DatasetSource, ModelSource
from tasks.sources.errors import SourceError, SourceNotFoundError, UnusableSourceError
from tasks.sources.local import resolve_file
from tasks.sources.resolve import probe_dataset, probe_file, probe_model, probe_rows, resolve_dataset, resolve_model
from tests.unit.factories.weight_bytes import weight_bytes

ROWS = b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n'
MODEL = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": weight_bytes(b"weights" * 100),
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
}


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in MODEL.items():
        (folder / name).write_bytes(data)
    return folder


def test_a_local_model_is_known_by_its_content(model_folder: Path, tmp_path: Path) -> None:
    source = ModelSource(path=str(model_folder))
    found = resolve_model(source, token=None)
    assert (found.path, found.origin) == (model_folder, str(model_folder))
    assert found.digest.startswith("sha256:")
    (model_folder / ".cache").mkdir()
    (model_folder / ".cache" / "note").write_text("hidden files are no content")
    assert resolve_model(source, token=None).digest == found.digest
    copy = model_folder.rename(tmp_path / "moved")
    assert resolve_model(ModelSource(path=str(copy)), token=None).digest == found.digest
    (copy / "model.safetensors").write_bytes(weight_bytes(b"weightz" * 100))
    assert resolve_model(ModelSource(path=str(copy)), token=None).digest != found.digest


def test_a_relative_path_starts_at_the_current_folder(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_folder.parent)
    assert resolve_model(ModelSource(path="model"), token=None).path == model_folder
    with pytest.raises(SourceNotFoundError, match=f"base_model.path: {model_folder.parent}/none does not exist"):
        probe_model(ModelSource(path="none"), token=None)


def test_a_folder_with_links_is_refused_since_they_lead_nowhere_once_mounted(model_folder: Path) -> None:
    weights = model_folder / "model.safetensors"
    weights.rename(model_folder.parent / "blob")
    weights.symlink_to(model_folder.parent / "blob")
    with pytest.raises(UnusableSourceError, match="cp -rL"):
        resolve_model(ModelSource(path=str(model_folder)), token=None)


def test_a_link_to_a_data_file_is_followed_since_its_target_is_what_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_bytes(ROWS)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    found = resolve_file(tmp_path / "link.jsonl", name="tokenizer_file")
    assert (found.path, found.name) == (tmp_path / "real.jsonl", "tokenizer_file")


def test_a_changed_data_file_has_another_digest(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(ROWS)
    source = DatasetSource(train=str(file))
    (first,) = resolve_dataset(source, token=None)
    assert first.digest == f"sha256:{hashlib.sha256(ROWS).hexdigest()}"
    file.write_bytes(ROWS.replace(b"a", b"b"))
    os.utime(file, ns=(1, 1))
    assert resolve_dataset(source, token=None)[0].digest != first.digest


def test_a_local_folder_of_data_is_one_input(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(ROWS)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(ROWS))
    train, validation = resolve_dataset(
        DatasetSource(train=str(folder), validation=str(folder / "a.jsonl")), token=None
    )
    assert train.path == folder and validation.path == folder / "a.jsonl"
    size = sum(file.stat().st_size for file in folder.iterdir())
    found = probe_dataset(DatasetSource(train=str(folder)), token=None).found
    assert found == f"{folder} (2 files, {size} bytes, TRL preference, 2 rows)"


def test_a_path_that_is_no_data_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "readme.md").write_text("no rows")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, message in (
        ("empty.jsonl", "empty \\(0 bytes\\)"),
        ("pipe.jsonl", "device, pipe or socket"),
        ("docs", "holds no data file. Wanted: .jsonl, .jsonl.gz, .parquet; found: readme.md"),
        ("circle", "cannot be opened"),
        ("train-*.jsonl", "does not exist.*Patterns work inside hub repositories only"),
        ("a\0b", "cannot be opened"),
    ):
        for probe in (probe_file, probe_rows):
            with pytest.raises(SourceError, match=message):
                probe(tmp_path / name, key="dataset.train")
        with pytest.raises(SourceError, match=message):
            resolve_dataset(DatasetSource(train=str(tmp_path / name)), token=None)


def test_a_file_that_is_no_data_is_judged_only_where_pairs_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.tiktoken").write_text("IQ== 0\nIg== 1\n")
    assert probe_file(tmp_path / "vocabulary.tiktoken", key="tokenizer_file").found.endswith("(14 bytes)")
    with pytest.raises(UnusableSourceError, match=r"pair file x: .*none of its first 2 lines is a JSON object"):
        probe_rows(tmp_path / "vocabulary.tiktoken", key="pair file x")


def test_hidden_files_of_a_folder_are_neither_content_nor_data(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    before = resolve_file(tmp_path, name="train_data").digest
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "rows.jsonl").write_text("no rows")
    assert resolve_file(tmp_path, name="train_data").digest == before
    assert "(1 file, " in probe_rows(tmp_path, key="dataset.train").found


@pytest.mark.shared_data
def test_the_real_dialogues_resolve_to_the_digests_that_their_list_states(shared_data: Path) -> None:
    sums = dict(reversed(line.split()) for line in (shared_data / "SHA256SUMS").read_text().splitlines())
    source = DatasetSource(
        train=str(shared_data / "helpsteer3_schema_train.jsonl.gz"),
        validation=str(shared_data / "helpsteer3_schema_validation.jsonl.gz"),
    )
    digests = {item.path.name: item.digest for item in resolve_dataset(source, token=None)}
    assert digests == {name: f"sha256:{sums[name]}" for name in digests}
    assert len(digests) == 2
