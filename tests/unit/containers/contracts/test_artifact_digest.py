"""What an artifact is to the stages behind it: its data, not the account of how they came about."""

import os
from pathlib import Path

import pytest

from containers.contracts import digests
from containers.contracts.digests import (
    DamagedArtifactError,
    UnsafeFileError,
    artifact_digest,
    content_digest,
    file_entries,
    file_sha256,
    read_manifest,
    sample_sha256,
    verify_artifact,
    write_atomically,
)
from containers.contracts.manifest import Manifest
from containers.contracts.names import MANIFEST_FILE, StageName


def digest_of(folder: Path, **files: str) -> str:
    (folder / "plots").mkdir(parents=True)
    for name, text in {"train.parquet": "pairs", "funnel.json": "{}", "plots/funnel.png": "picture", **files}.items():
        (folder / name).write_text(text)
    manifest = Manifest(
        stage=StageName.FILTER_DATASET, key="a" * 64, files=file_entries(folder), created_at="2026-01-01T00:00:00+00:00"
    )
    return artifact_digest(manifest)


def test_the_same_pairs_are_the_same_content_whatever_was_looked_for_besides(tmp_path: Path) -> None:
    before = digest_of(tmp_path / "a")
    looked_for_more = {"funnel.json": '{"contamination": 1}', "plots/funnel.png": "other", "contaminated.jsonl": ""}
    assert digest_of(tmp_path / "b", **looked_for_more) == before


def test_other_pairs_and_further_files_are_other_content(tmp_path: Path) -> None:
    before = digest_of(tmp_path / "a")
    assert digest_of(tmp_path / "b", **{"train.parquet": "other"}) != before
    assert digest_of(tmp_path / "c", **{"more.parquet": "pairs"}) != before


def test_a_model_with_other_times_and_curves_is_the_same_content(tmp_path: Path) -> None:
    before = digest_of(tmp_path / "a", **{"training_info.json": "10 s", "curves.jsonl": "1", "trainer_state.json": "1"})
    again = digest_of(tmp_path / "b", **{"training_info.json": "12 s", "curves.jsonl": "2", "trainer_state.json": "2"})
    assert again == before


def test_the_digests_of_a_file_are_those_that_older_stores_hold(tmp_path: Path) -> None:
    """Else every artifact of an older store would count as damaged, or be made again."""
    path = tmp_path / "weights.bin"
    with path.open("wb") as stream:
        for number in range(20):  # MiB
            stream.write(bytes([number]) * 1024**2)
    assert sample_sha256(path) == "29a7f5afcc40dc3f96f9f251f13ccd2221b363ca700e6dfdab00c8b3ac89345a"
    (entry,) = file_entries(tmp_path)
    assert (entry.path, entry.size_bytes, entry.sample_sha256) == ("weights.bin", 20 * 1024**2, "")
    assert content_digest([entry]) == "sha256:fc873f6186eaeaced76211dbe656167d41392dc274f5d312bc0359dd3e502515"


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    folder = tmp_path / "artifact"
    (folder / "plots" / "deep").mkdir(parents=True)
    for name in ("b.json", "plots/a.png", "plots/deep/c.png"):
        (folder / name).write_text(name)
    manifest = Manifest(
        stage=StageName.FILTER_DATASET, key="a" * 64, files=file_entries(folder), created_at="2026-01-01T00:00:00+00:00"
    )
    write_atomically(folder / MANIFEST_FILE, manifest.model_dump_json())
    return folder


def test_the_files_of_an_artifact_are_those_at_every_depth_but_its_manifest(artifact: Path) -> None:
    names = ["b.json", "plots/a.png", "plots/deep/c.png"]
    assert [entry.path for entry in file_entries(artifact)] == names
    assert [entry.path for entry in verify_artifact(artifact).files] == names
    entries = file_entries(artifact)
    assert content_digest(entries) == content_digest(entries[::-1])


@pytest.mark.parametrize("name", ["b.json", "plots/deep/c.png"])
def test_a_missing_a_changed_and_a_further_file_are_named(artifact: Path, name: str) -> None:
    path = artifact / name
    path.write_text("x" * len(name))
    with pytest.raises(DamagedArtifactError, match=f"{name} was changed: sha256"):
        verify_artifact(artifact)
    path.rename(path.with_name("other"))
    with pytest.raises(DamagedArtifactError, match=f"{name} is missing"):
        verify_artifact(artifact)
    path.write_text(name)
    with pytest.raises(DamagedArtifactError, match="other is not in the manifest"):
        verify_artifact(artifact)


@pytest.mark.parametrize("leads_to", ["b.json", "plots"])
def test_a_link_in_an_artifact_is_damage_wherever_it_leads(artifact: Path, leads_to: str) -> None:
    (artifact / "plots" / "link").symlink_to(artifact / leads_to)
    with pytest.raises(DamagedArtifactError, match=r"cannot be verified: .*link is a symbolic link"):
        verify_artifact(artifact)
    with pytest.raises(UnsafeFileError):
        file_entries(artifact)


def test_what_is_neither_file_nor_folder_is_refused_and_not_waited_for(artifact: Path) -> None:
    os.mkfifo(artifact / "pipe")
    with pytest.raises(DamagedArtifactError, match="neither a regular file nor a folder"):
        verify_artifact(artifact)
    with pytest.raises(UnsafeFileError, match="is not a regular file"):
        file_sha256(artifact / "pipe")
    with pytest.raises(UnsafeFileError, match="is not a regular file"):
        file_sha256(artifact / "plots")


def test_an_artifact_without_a_whole_manifest_was_never_finished(artifact: Path) -> None:
    (artifact / MANIFEST_FILE).write_text('{"stage": "filter_')
    with pytest.raises(DamagedArtifactError, match="cannot be read"):
        read_manifest(artifact)
    (artifact / MANIFEST_FILE).unlink()
    with pytest.raises(DamagedArtifactError, match="never finished"):
        verify_artifact(artifact)


def test_every_file_from_a_size_on_has_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "SAMPLED_FROM_BYTES", 10)
    for size in (9, 10, 11):
        (tmp_path / f"{size:02}.bin").write_bytes(b"x" * size)
    assert [bool(entry.sample_sha256) for entry in file_entries(tmp_path)] == [False, True, True]
