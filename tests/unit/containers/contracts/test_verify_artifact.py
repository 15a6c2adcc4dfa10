"""What is compared before an artifact is used again: every byte, or, for files that take too long, samples."""

from pathlib import Path

import pytest

from containers.contracts.digests import (
    SAMPLED_FROM_BYTES,
    DamagedArtifactError,
    file_entries,
    verify_artifact,
    write_atomically,
)
from containers.contracts.manifest import Manifest
from containers.contracts.names import MANIFEST_FILE, StageName

MIB = 1024**2


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A small file, and one that is large enough to be sampled."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "small.json").write_text("{}")
    block = bytes(range(256)) * (MIB // 256)
    with (folder / "large.bin").open("wb") as stream:
        for _ in range(SAMPLED_FROM_BYTES // MIB):
            stream.write(block)
    manifest = Manifest(
        stage=StageName.TRAIN_POLICY, key="a" * 64, files=file_entries(folder), created_at="2026-01-01T00:00:00+00:00"
    )
    write_atomically(folder / MANIFEST_FILE, manifest.model_dump_json())
    return folder


def change(path: Path, *, at: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff\xfe")


def test_a_whole_artifact_passes_both_ways(artifact: Path) -> None:
    assert verify_artifact(artifact) == verify_artifact(artifact, whole_up_to_bytes=0)


def test_only_large_files_have_a_sample(artifact: Path) -> None:
    samples = {entry.path: bool(entry.sample_sha256) for entry in file_entries(artifact)}
    assert samples == {"large.bin": True, "small.json": False}


@pytest.mark.parametrize("at", [0, SAMPLED_FROM_BYTES - 2], ids=["beginning", "end"])
def test_samples_notice_a_changed_beginning_and_end(artifact: Path, at: int) -> None:
    change(artifact / "large.bin", at=at)
    with pytest.raises(DamagedArtifactError, match=r"large\.bin was changed: a sample"):
        verify_artifact(artifact, whole_up_to_bytes=MIB)


def test_a_byte_between_the_samples_is_noticed_only_by_the_whole_comparison(artifact: Path) -> None:
    change(artifact / "large.bin", at=2 * MIB + 5)
    verify_artifact(artifact, whole_up_to_bytes=MIB)
    with pytest.raises(DamagedArtifactError, match=r"large\.bin was changed: sha256"):
        verify_artifact(artifact)
    with pytest.raises(DamagedArtifactError, match=r"large\.bin was changed: sha256"):
        verify_artifact(artifact, whole_up_to_bytes=SAMPLED_FROM_BYTES)


def test_small_files_are_compared_whole_also_where_sampling_is_allowed(artifact: Path) -> None:
    (artifact / "small.json").write_text("[]")
    with pytest.raises(DamagedArtifactError, match=r"small\.json was changed"):
        verify_artifact(artifact, whole_up_to_bytes=0)


def test_a_cut_file_is_named_with_both_sizes(artifact: Path) -> None:
    with (artifact / "large.bin").open("r+b") as stream:
        stream.truncate(SAMPLED_FROM_BYTES - 1)
    with pytest.raises(DamagedArtifactError, match=f"has {SAMPLED_FROM_BYTES - 1} bytes"):
        verify_artifact(artifact, whole_up_to_bytes=0)


def test_a_file_that_grew_is_named_with_both_sizes(artifact: Path) -> None:
    with (artifact / "large.bin").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(DamagedArtifactError, match=f"has {SAMPLED_FROM_BYTES + 1} bytes"):
        verify_artifact(artifact, whole_up_to_bytes=0)
