"""A folder with an adapter on its base model may be large: it is listed, freed when unused, and never while in use."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.contracts.names import StageName
from tasks.sources.adapter_folders import (
    AdapterFolder,
    ModelFiles,
    adapter_on_base,
    adapters_root,
    find_unused,
    hold,
    list_adapter_folders,
    remove_adapter_folder,
)
from tasks.store.history import StageHistory, StageMemory

pytestmark = pytest.mark.waits

WEIGHTS, LOW_RANK = b"w" * 5000, b"a" * 300
LONG_AGO = time.time() - 30 * 86_400
MAKER = """
import sys
from pathlib import Path
from tasks.sources.adapter_folders import adapter_on_base
from tests.unit.tasks.sources.test_adapter_folders import parts
print(adapter_on_base(*parts(Path(sys.argv[1]))))
"""
HOLDER = """
import sys
from pathlib import Path
from tasks.sources.adapter_folders import hold
print(hold(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return tmp_path / "store"


def parts(place: Path) -> tuple[ModelFiles, ModelFiles]:
    """An adapter and its base model as files, written where they are not there yet."""
    made = []
    for folder, data in (
        (place / "adapter", {"adapter_model.safetensors": LOW_RANK}),
        (place / "base", {"model.safetensors": WEIGHTS, "config.json": b"{}"}),
    ):
        if not folder.is_dir():
            folder.mkdir(parents=True)
            for name, content in data.items():
                (folder / name).write_bytes(content)
        made.append(ModelFiles(folder, tuple(sorted(data)), str(folder)))
    return made[0], made[1]


def put_together(place: Path) -> Path:
    """Made by a process that ended, so that nobody holds it."""
    parts(place)
    command = [sys.executable, "-c", MAKER, str(place)]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def age(folder: Path) -> None:
    os.utime(folder, (LONG_AGO, LONG_AGO))


@pytest.fixture
def holder() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def held_elsewhere(folder: Path, holder: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    holder.append(process)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    return process


def listed(store: Path) -> AdapterFolder:
    (found,) = list_adapter_folders(store)
    return found


def test_its_size_is_what_deleting_it_frees_and_links_count_apart(store: Path, tmp_path: Path) -> None:
    put_together(tmp_path)
    found = listed(store)
    assert (found.own_bytes, found.shared_bytes) == (0, len(WEIGHTS) + len(LOW_RANK) + len(b"{}"))
    (tmp_path / "base" / "model.safetensors").unlink()
    found = listed(store)
    assert (found.own_bytes, found.shared_bytes) == (len(WEIGHTS), len(LOW_RANK) + len(b"{}"))


def test_one_that_nobody_used_for_long_can_go_and_is_made_again_when_it_is_asked_for(
    store: Path, tmp_path: Path
) -> None:
    folder = put_together(tmp_path)
    assert find_unused(store, older_than_days=7) == ()
    age(folder)
    (item,) = find_unused(store, older_than_days=7)
    assert remove_adapter_folder(item) == ""
    assert list(adapters_root().iterdir()) == []
    assert adapter_on_base(*parts(tmp_path)) == folder
    assert (folder / "base" / "model.safetensors").read_bytes() == WEIGHTS


def test_one_that_a_process_uses_stays_until_that_process_is_dead(
    store: Path, tmp_path: Path, holder: list[subprocess.Popen[str]]
) -> None:
    folder = put_together(tmp_path)
    age(folder)
    (item,) = find_unused(store, older_than_days=7)
    process = held_elsewhere(folder, holder)
    age(folder)
    assert find_unused(store, older_than_days=0) == ()
    assert listed(store).is_held
    assert remove_adapter_folder(item) == "a process uses it"
    assert (folder / "base" / "model.safetensors").is_file()
    process.kill()
    process.communicate()
    assert not listed(store).is_held
    assert remove_adapter_folder(item) == ""
    assert not folder.exists()


def test_using_one_counts_from_the_last_time(store: Path, tmp_path: Path) -> None:
    folder = put_together(tmp_path)
    age(folder)
    assert listed(store).last_used == pytest.approx(LONG_AGO, abs=1)
    assert hold(folder)
    assert listed(store).last_used == pytest.approx(time.time(), abs=60)


def test_one_that_a_run_was_judged_by_stays_as_long_as_the_run(store: Path, tmp_path: Path) -> None:
    folder = put_together(tmp_path)
    age(folder)
    output = tmp_path / "outputs" / "certified"
    output.mkdir(parents=True)
    memory = StageMemory(key="a" * 64, identity={}, origins={"reward_model": str(folder)})
    StageHistory(store, run_name="certified", output_dir=output).remember(StageName.EVALUATE_REWARD_MODEL, memory)
    assert listed(store).used_by == ("certified",)
    assert find_unused(store, older_than_days=7) == ()
    output.rmdir()
    assert [item.path for item in find_unused(store, older_than_days=7)] == [folder]


def test_what_a_dead_process_left_half_made_can_go_and_what_is_being_made_cannot(
    store: Path, holder: list[subprocess.Popen[str]]
) -> None:
    left, young, making = (adapters_root() / f".building-{name}" for name in ("left", "young", "making"))
    for folder in (left, young, making):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(WEIGHTS)
    held_elsewhere(making, holder)
    age(left)
    age(making)
    (item,) = find_unused(store, older_than_days=60)
    assert (item.path, item.own_bytes, item.is_leftover) == (left, len(WEIGHTS), True)
    assert remove_adapter_folder(item) == ""
    assert {path.name for path in adapters_root().iterdir()} == {young.name, making.name}


def test_a_folder_that_is_gone_cannot_be_held(store: Path, tmp_path: Path) -> None:
    folder = put_together(tmp_path)
    assert hold(folder)
    folder.rename(tmp_path / "elsewhere")
    assert not hold(folder)
    assert list_adapter_folders(store) == ()
