"""A stage may have written anything; what the store holds must be whole, its own, and nothing of the host's."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from containers.contracts.digests import file_entries, verify_artifact
from containers.contracts.manifest import Manifest
from containers.contracts.names import MANIFEST_FILE, OUTCOME_FILE, RANK_FAILURES, StageName
from containers.launch.collect import (
    ArtifactLookup,
    NoResultError,
    UnsafeOutputError,
    find_artifact,
    publish,
    read_outcome,
)
from tests.unit.factories.launch_factory import KEY, make_failure, make_result, make_spec

STAGE = StageName.WRITE_REPORT
SPEC = make_spec()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work folder as the entry program leaves it after a result."""
    folder = tmp_path / "work"
    (folder / "output" / "plots").mkdir(parents=True)
    (folder / "output" / "report.html").write_text("<p>fine</p>")
    (folder / "output" / "plots" / "a.png").write_bytes(b"\x89PNG")
    seal(folder)
    return folder


def seal(folder: Path, key: str = KEY) -> None:
    output = folder / "output"
    manifest = Manifest(stage=STAGE, key=key, files=file_entries(output), created_at="2026-01-01T00:00:00+00:00")
    (output / MANIFEST_FILE).write_text(manifest.model_dump_json())
    (folder / OUTCOME_FILE).write_text(make_result(SPEC).model_dump_json())


def test_a_finished_stage_is_published_by_one_rename_and_found_again(tmp_path: Path, work: Path) -> None:
    store = tmp_path / "artifacts"
    artifact = publish(work, store, stage=STAGE, key=KEY)
    assert Path(artifact.path) == store / STAGE / KEY
    assert artifact.digest.startswith("sha256:")
    assert find_artifact(store, stage=STAGE, key=KEY) == ArtifactLookup(artifact=artifact)
    assert verify_artifact(Path(artifact.path)).key == KEY
    assert not (work / "output").exists()


def test_a_published_artifact_can_be_read_by_the_user_of_a_later_stage(tmp_path: Path, work: Path) -> None:
    (work / "output" / "report.html").chmod(0o4700)
    (work / "output" / "plots").chmod(0o700)
    folder = Path(publish(work, tmp_path / "artifacts", stage=STAGE, key=KEY).path)
    assert (folder / "report.html").stat().st_mode & 0o7777 == 0o644, "readable, and no setuid bit"
    assert (folder / "plots").stat().st_mode & 0o7777 == 0o755


def test_an_empty_store_is_no_damage(tmp_path: Path) -> None:
    assert find_artifact(tmp_path, stage=STAGE, key=KEY) == ArtifactLookup(artifact=None)


def test_nothing_is_published_without_a_result_of_this_key(tmp_path: Path, work: Path) -> None:
    with pytest.raises(NoResultError):
        publish(work, tmp_path / "artifacts", stage=STAGE, key="cd" * 32)
    (work / OUTCOME_FILE).write_text(make_failure(SPEC, "bad_data", "zero rows").model_dump_json())
    with pytest.raises(NoResultError):
        publish(work, tmp_path / "artifacts", stage=STAGE, key=KEY)
    (work / OUTCOME_FILE).unlink()
    with pytest.raises(NoResultError):
        publish(work, tmp_path / "artifacts", stage=STAGE, key=KEY)
    assert not (tmp_path / "artifacts").exists()


def damage_change(folder: Path) -> None:
    (folder / "report.html").write_text("<p>evil</p>")


def damage_remove(folder: Path) -> None:
    (folder / "plots" / "a.png").unlink()


def damage_add(folder: Path) -> None:
    (folder / "plots" / "b.png").write_text("more")


def damage_manifest(folder: Path) -> None:
    (folder / MANIFEST_FILE).write_text("{")


def damage_no_manifest(folder: Path) -> None:
    (folder / MANIFEST_FILE).unlink()


DAMAGES = [damage_change, damage_remove, damage_add, damage_manifest, damage_no_manifest]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_artifact_is_set_aside_with_the_reason(tmp_path: Path, work: Path, damage) -> None:  # type: ignore[no-untyped-def]
    store = tmp_path / "artifacts"
    folder = Path(publish(work, store, stage=STAGE, key=KEY).path)
    damage(folder)
    lookup = find_artifact(store, stage=STAGE, key=KEY)
    assert lookup.artifact is None
    assert f"{KEY}.damaged-1" in lookup.damage
    assert str(folder) in lookup.damage
    assert not folder.exists()
    assert (store / STAGE / f"{KEY}.damaged-1").is_dir()
    assert find_artifact(store, stage=STAGE, key=KEY) == ArtifactLookup(artifact=None)


def test_an_artifact_of_another_key_under_this_name_is_damage(tmp_path: Path, work: Path) -> None:
    store = tmp_path / "artifacts"
    folder = Path(publish(work, store, stage=STAGE, key=KEY).path)
    other = "cd" * 32
    folder.rename(folder.with_name(other))
    assert "is that of write_report abababababab" in find_artifact(store, stage=STAGE, key=other).damage


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_output_that_does_not_match_its_manifest_is_not_published(
    tmp_path: Path,
    work: Path,
    damage,  # type: ignore[no-untyped-def]
) -> None:
    damage(work / "output")
    with pytest.raises(UnsafeOutputError, match="manifest"):
        publish(work, tmp_path / "artifacts", stage=STAGE, key=KEY)
    assert not (tmp_path / "artifacts").exists()


def test_an_artifact_that_is_there_already_is_kept(tmp_path: Path, work: Path) -> None:
    store = tmp_path / "artifacts"
    first = publish(work, store, stage=STAGE, key=KEY)
    (work / "output").mkdir()
    (work / "output" / "report.html").write_text("another")
    seal(work)
    assert publish(work, store, stage=STAGE, key=KEY) == first
    assert (store / STAGE / KEY / "report.html").read_text() == "<p>fine</p>"


def test_a_damaged_artifact_gives_way_to_a_new_one(tmp_path: Path, work: Path) -> None:
    store = tmp_path / "artifacts"
    damage_change(Path(publish(work, store, stage=STAGE, key=KEY).path))
    (work / "output").mkdir()
    (work / "output" / "report.html").write_text("again")
    seal(work)
    publish(work, store, stage=STAGE, key=KEY)
    assert (store / STAGE / KEY / "report.html").read_text() == "again"
    assert (store / STAGE / f"{KEY}.damaged-1").is_dir()


def make_link(output: Path, secret: Path) -> None:
    (output / "notes.txt").symlink_to(secret)


def make_folder_link(output: Path, secret: Path) -> None:
    (output / "more").symlink_to(secret.parent)


def make_fifo(output: Path, secret: Path) -> None:
    os.mkfifo(output / "pipe")


def make_giant(output: Path, secret: Path) -> None:
    with open(output / "giant", "wb") as stream:
        stream.truncate(1024**4)


@pytest.mark.parametrize("attack", [make_link, make_folder_link, make_fifo, make_giant])
def test_links_fifos_and_sparse_giants_are_refused_before_they_are_read(tmp_path: Path, work: Path, attack) -> None:  # type: ignore[no-untyped-def]
    secret = tmp_path / "host" / "secret"
    secret.parent.mkdir()
    secret.write_text("canary")
    attack(work / "output", secret)
    done: list[BaseException] = []

    def attempt() -> None:
        try:
            publish(work, tmp_path / "artifacts", stage=STAGE, key=KEY)
        except UnsafeOutputError as error:
            done.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert done, "it was refused, and did not hang"
    assert not (tmp_path / "artifacts").exists()


def test_an_output_folder_that_is_a_link_is_refused(tmp_path: Path, work: Path) -> None:
    (work / "output").rename(tmp_path / "elsewhere")
    (work / "output").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeOutputError):
        publish(work, tmp_path / "artifacts", stage=STAGE, key=KEY)


def test_an_outcome_that_is_a_link_a_fifo_or_garbage_is_not_believed(tmp_path: Path) -> None:
    assert read_outcome(tmp_path) is None
    path = tmp_path / OUTCOME_FILE
    good = tmp_path / "good.json"
    good.write_text(make_result(SPEC).model_dump_json())
    path.symlink_to(good)
    assert read_outcome(tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_outcome(tmp_path) is None
    path.unlink()
    path.write_text('{"outcome": "result", "stage"')
    assert read_outcome(tmp_path) is None
    path.write_text(good.read_text())
    assert read_outcome(tmp_path) == make_result(SPEC)


def test_a_kill_during_publishing_leaves_all_or_nothing(tmp_path: Path, work: Path) -> None:
    """The process dies at the rename; the store shows nothing, and a second attempt publishes."""
    program = (
        "import os, pathlib, sys; from containers.launch.collect import publish\n"
        "pathlib.Path.rename = lambda *a: os._exit(9)\n"
        f"publish(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), stage='{STAGE}', key='{KEY}')"
    )
    project = str(Path(__file__).resolve().parents[4])
    command = [sys.executable, "-c", program, str(work), str(tmp_path / "artifacts")]
    assert subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": project}).returncode == 9
    assert find_artifact(tmp_path / "artifacts", stage=STAGE, key=KEY) == ArtifactLookup(artifact=None)
    assert publish(work, tmp_path / "artifacts", stage=STAGE, key=KEY).key == KEY


def write_rank_failure(folder: Path, rank: int, kind: str, message: str, *, written_at_s: int) -> None:
    path = folder / RANK_FAILURES.replace("*", str(rank))
    path.write_text(make_failure(SPEC, kind, message).model_dump_json())
    os.utime(path, (written_at_s, written_at_s))


def test_the_rank_that_failed_first_speaks_where_the_first_rank_died_before_it_could(tmp_path: Path) -> None:
    write_rank_failure(tmp_path, 1, "unexpected", "Rank 1: Connection reset by peer", written_at_s=20)
    write_rank_failure(tmp_path, 2, "unexpected", "Rank 2: KeyError", written_at_s=10)
    write_rank_failure(tmp_path, 3, "cancelled", "Rank 3: The stage was stopped (SIGTERM).", written_at_s=5)
    outcome = read_outcome(tmp_path)
    assert getattr(outcome, "message", None) == "Rank 2: KeyError"
    write_rank_failure(tmp_path, 4, "diverged", "Rank 4: loss is nan", written_at_s=30)
    assert getattr(read_outcome(tmp_path), "message", None) == "Rank 4: loss is nan", "a known kind explains the others"
    (tmp_path / OUTCOME_FILE).write_text(make_failure(SPEC, "out_of_gpu_memory", "full").model_dump_json())
    assert getattr(read_outcome(tmp_path), "message", None) == "full", "the stage's own word counts most"


def test_ranks_that_were_only_told_to_stop_explain_nothing(tmp_path: Path) -> None:
    write_rank_failure(tmp_path, 1, "cancelled", "Rank 1: The stage was stopped (SIGTERM).", written_at_s=5)
    (tmp_path / RANK_FAILURES.replace("*", "2")).symlink_to("/etc/passwd")
    assert read_outcome(tmp_path) is None
