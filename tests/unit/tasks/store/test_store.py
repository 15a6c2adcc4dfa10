"""The store as people keep house in it: what is there, who wants it, what can go, and what must never go."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from containers.contracts.digests import file_entries, write_atomically
from containers.contracts.manifest import Manifest
from containers.contracts.names import StageName
from tasks.store.contents import find_garbage, linked_folders, list_artifacts, remove, verify_artifacts
from tasks.store.history import StageHistory, StageMemory
from tasks.store.lock import lock_path

STAGE = StageName.TRAIN_REWARD_MODEL
WANTED, UNWANTED, UNFINISHED = "a" * 64, "b" * 64, "c" * 64
LONG_AGO = time.time() - 30 * 86_400


def publish(store: Path, key: str) -> Path:
    folder = store / "artifacts" / STAGE / key
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"x" * 1000)
    manifest = Manifest(stage=STAGE, key=key, files=file_entries(folder), created_at="2026-01-01T00:00:00+00:00")
    write_atomically(folder / "MANIFEST.json", manifest.model_dump_json())
    return folder


def work(store: Path, key: str) -> Path:
    checkpoint = store / "work" / STAGE / key / "checkpoints" / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    (checkpoint / "optimizer.pt").write_bytes(b"x" * 500)
    return checkpoint.parents[1]


def age(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (LONG_AGO, LONG_AGO))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One artifact that a run wants, one that nobody wants, and unfinished work."""
    folder = tmp_path / "store"
    for key in (WANTED, UNWANTED):
        age(publish(folder, key))
    (tmp_path / "demo").mkdir()
    history = StageHistory(folder, run_name="demo", output_dir=tmp_path / "demo")
    history.remember(STAGE, StageMemory(key=WANTED, identity={}))
    work(folder, WANTED)
    age(work(folder, UNFINISHED))
    return folder


def garbage(store: Path, *, older_than_days: float = 7) -> dict[str, str]:
    return {item.kind: item.key for item in find_garbage(store, older_than_days=older_than_days)}


def test_the_list_names_size_and_the_runs_that_want_it(store: Path) -> None:
    listed = {item.key: item for item in list_artifacts(store)}
    assert listed[WANTED].used_by == ("demo",)
    assert listed[UNWANTED].used_by == ()
    assert listed[WANTED].size_bytes > 1000


def test_a_file_that_goes_while_sizes_are_added_up_hides_no_other(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, real = store / "artifacts" / STAGE / WANTED, os.scandir
    (folder / "index.bin").write_bytes(b"x" * 200)
    (folder / "gone.bin").write_bytes(b"x" * 70)
    whole = {item.key: item.size_bytes for item in list_artifacts(store)}[WANTED]

    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(path) as entries:
            listed = sorted(entries, key=lambda entry: entry.name != "gone.bin")
        if Path(path) == folder:
            (folder / "gone.bin").unlink(missing_ok=True)  # between its listing and its stat
        yield iter(listed)

    monkeypatch.setattr(os, "scandir", scandir)
    assert {item.key: item.size_bytes for item in list_artifacts(store)}[WANTED] == whole - 70


def test_what_nobody_wants_and_what_finished_work_left_behind_can_go(store: Path) -> None:
    assert garbage(store) == {"artifact": UNWANTED, "checkpoints": WANTED, "unfinished work": UNFINISHED}


def test_young_things_and_wanted_artifacts_stay(store: Path) -> None:
    assert garbage(store, older_than_days=60) == {"checkpoints": WANTED}


def test_old_logs_of_attempts_that_no_run_wants_can_go_and_young_ones_stay(store: Path) -> None:
    for key in (WANTED, UNWANTED, UNFINISHED):
        folder = store / "attempts" / STAGE / key / "attempt-1"
        folder.mkdir(parents=True)
        (folder / "stage.log").write_text("hello")
        age(folder.parent)
    (store / "attempts" / STAGE / UNWANTED).rename(store / "attempts" / STAGE / ("e" * 64))
    logs = [item.key for item in find_garbage(store, older_than_days=7) if item.kind == "logs"]
    assert sorted(logs) == sorted(("e" * 64, UNFINISHED))
    assert [item for item in find_garbage(store, older_than_days=60) if item.kind == "logs"] == []


def test_a_run_whose_folder_was_deleted_wants_nothing(store: Path) -> None:
    (store.parent / "demo").rmdir()
    artifacts = {item.key for item in find_garbage(store, older_than_days=7) if item.kind == "artifact"}
    assert artifacts == {WANTED, UNWANTED}


def test_a_key_that_a_run_works_on_is_left_alone(store: Path) -> None:
    (item,) = (item for item in find_garbage(store, older_than_days=7) if item.kind == "unfinished work")
    with FileLock(lock_path(store / "work" / STAGE / UNFINISHED)):
        assert remove(item, store) == "a run works on it"
    assert item.path.is_dir()
    assert remove(item, store) == ""
    assert not item.path.exists()


def test_damage_is_found_and_named(store: Path) -> None:
    (store / "artifacts" / STAGE / WANTED / "weights.bin").write_bytes(b"y" * 1000)
    problems = {key: problem for _, key, problem in verify_artifacts(store)}
    assert "weights.bin was changed" in problems[WANTED]
    assert problems[UNWANTED] == ""


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Something of somebody else's, to which links lead."""
    folder = tmp_path / "precious" / STAGE / UNFINISHED
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"x" * 4000)
    age(folder)
    return folder


@pytest.mark.parametrize("leads", ["to a folder", "nowhere"])
def test_a_damaged_artifact_that_is_a_link_goes_without_what_it_points_to(
    store: Path, precious: Path, leads: str
) -> None:
    link = store / "artifacts" / STAGE / f"{UNFINISHED}.damaged-1"
    link.symlink_to(precious if leads == "to a folder" else store / "gone")
    (item,) = (item for item in find_garbage(store, older_than_days=7) if item.kind == "damaged artifact")
    assert item.size_bytes == 0
    assert "only the link goes" in item.why
    assert remove(item, store) == ""
    assert not link.is_symlink()
    assert (precious / "weights.bin").is_file()


def test_a_replaced_artifact_that_is_a_dangling_link_ends_no_command(store: Path) -> None:
    (store / "artifacts" / STAGE / f"{UNFINISHED}.replaced-1").symlink_to(store / "gone")
    assert garbage(store)["artifact"] == UNWANTED


def test_checkpoints_behind_a_link_stay(store: Path, precious: Path) -> None:
    checkpoints = store / "work" / STAGE / WANTED / "checkpoints"
    shutil.rmtree(checkpoints)
    checkpoints.symlink_to(precious)
    for item in find_garbage(store, older_than_days=7):
        assert item.path != checkpoints
        assert remove(item, store) == ""
    assert (precious / "weights.bin").is_file()


@pytest.mark.parametrize("part", ["artifacts", "work", "attempts"])
@pytest.mark.parametrize("is_whole_part", [True, False])
def test_nothing_is_collected_through_a_link_of_the_store(
    store: Path, precious: Path, part: str, is_whole_part: bool
) -> None:
    place = store / part if is_whole_part else store / part / STAGE
    if place.exists():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(precious.parents[1] if is_whole_part else precious.parent)
    for item in find_garbage(store, older_than_days=0):
        remove(item, store)
    assert (precious / "weights.bin").is_file()
    assert linked_folders(store) == (place,)


def test_a_lock_that_is_a_link_leaves_garbage_with_a_sentence(store: Path, precious: Path) -> None:
    (item,) = (item for item in find_garbage(store, older_than_days=7) if item.kind == "unfinished work")
    lock_path(store / "work" / STAGE / UNFINISHED).symlink_to(precious / "weights.bin")
    assert "is a link to" in remove(item, store)
    assert item.path.is_dir()
    assert (precious / "weights.bin").read_bytes() == b"x" * 4000


def test_a_young_artifact_that_was_replaced_or_is_linked_stays_and_an_old_one_goes(store: Path) -> None:
    parent = store / "artifacts" / STAGE
    for name, is_old in ((f"{UNFINISHED}.replaced-1", True), (f"{UNFINISHED}.replaced-2", False)):
        (parent / name).mkdir()
        (parent / name / "weights.bin").write_bytes(b"x")
        if is_old:
            age(parent / name)
    found = [item for item in find_garbage(store, older_than_days=7) if item.kind == "replaced artifact"]
    assert [(item.path.name, item.key, item.size_bytes) for item in found] == [
        (f"{UNFINISHED}.replaced-1", UNFINISHED, 1)
    ]


def test_artifacts_are_listed_by_stage_in_the_order_of_the_pipeline_and_the_newest_first(tmp_path: Path) -> None:
    made = [
        (StageName.EVALUATE_REWARD_MODEL, "d" * 64, "2026-01-09"),
        (STAGE, "a" * 64, "2026-01-01"),
        (STAGE, "b" * 64, "2026-01-03"),
        (STAGE, "c" * 64, "2026-01-02"),
    ]
    for stage, key, day in made:
        folder = tmp_path / "artifacts" / stage / key
        folder.mkdir(parents=True)
        manifest = Manifest(stage=stage, key=key, files=(), created_at=f"{day}T00:00:00+00:00")
        write_atomically(folder / "MANIFEST.json", manifest.model_dump_json())
    (tmp_path / "artifacts" / STAGE / ("e" * 64)).mkdir()
    (tmp_path / "artifacts" / STAGE / "a key is 64 characters").mkdir()
    assert [item.key[0] for item in list_artifacts(tmp_path)] == ["b", "c", "a", "e", "d"]
    assert list_artifacts(tmp_path)[3].created_at == ""


def test_an_artifact_in_the_place_of_another_is_no_right_one(store: Path) -> None:
    place = store / "artifacts" / STAGE / ("9" * 64)
    shutil.copytree(store / "artifacts" / STAGE / WANTED, place)
    problems = {key: problem for _, key, problem in verify_artifacts(store)}
    assert problems["9" * 64] == f"{place} holds {STAGE} {WANTED[:12]}"
    assert problems[WANTED] == ""
