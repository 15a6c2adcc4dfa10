"""What an artifact is to the stages behind it: its data, not the account of how they came about."""

from pathlib import Path

from containers.contracts.digests import artifact_digest, content_digest, file_entries, sample_sha256
from containers.contracts.manifest import Manifest
from containers.contracts.names import StageName


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
