"""The file that says who is champion: complete, moved only on purpose, and its models are never tidied away."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from containers.contracts.names import StageName
from tasks.champions.book import (
    ChampionBook,
    ChampionError,
    ChampionGoneError,
    NoChampionError,
    promoted_by_hand,
    rolled_back,
)
from tasks.champions.record import ChampionRecord, Decision
from tasks.store.contents import find_garbage, list_artifacts
from tests.unit.factories.champion_factory import MADE_AT, make_book, record_of

LONG_AGO = time.time() - 30 * 86_400


def _champion(record: ChampionRecord) -> int:
    assert record.champion is not None
    return record.champion.number


def test_promotion_and_rollback_move_the_champion_and_stand_in_the_history(tmp_path: Path) -> None:
    book = make_book(tmp_path, num_versions=3)
    record = book.update(lambda found: promoted_by_hand(found, 3, by="Ada", reason="wins in red-teaming"))
    assert _champion(record) == 3
    record = book.update(lambda found: rolled_back(found, by="Ben", reason="rewards flattery"))
    assert _champion(record) == 2
    record = book.update(lambda found: rolled_back(found, by="Ben", reason="that one too"))
    assert _champion(record) == 1
    with pytest.raises(NoChampionError, match="no champion before version 1"):
        book.update(lambda found: rolled_back(found, by="Ben", reason="and again"))
    history = [(item.kind, item.champion_before, item.champion_after, item.by) for item in record_of(book).decisions]
    assert history[2:] == [
        ("promoted", 2, 3, "Ada"),
        ("rolled_back", 3, 2, "Ben"),
        ("rolled_back", 2, 1, "Ben"),
    ]


def test_a_champion_that_came_back_by_hand_can_be_rolled_back_to_the_one_before(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    book.update(lambda found: promoted_by_hand(found, 1, by="Ada", reason="the old one was better"))
    record = book.update(lambda found: rolled_back(found, by="Ada", reason="it was not"))
    assert (_champion(record), record.champions) == (2, (1, 2))


def test_what_cannot_be_promoted_is_said_with_what_can(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    with pytest.raises(NoChampionError, match=r"no version 7. Versions: 1, 2"):
        promoted_by_hand(book.read(), 7, by="Ada", reason="?")
    with pytest.raises(NoChampionError, match="version 2 is champion already"):
        promoted_by_hand(book.read(), 2, by="Ada", reason="?")
    empty = ChampionBook(tmp_path, run_name="other", kind="reward_model")
    with pytest.raises(NoChampionError, match="no champion yet"):
        rolled_back(empty.read(), by="Ada", reason="?")


def test_a_damaged_or_missing_model_is_refused_and_the_file_named(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    version = book.read().versions[0]
    folder = Path(book.artifact(version.model).path)
    book.require_whole(version)
    (folder / "merged/model.safetensors").write_bytes(b"weights X")
    with pytest.raises(ChampionGoneError, match=r"model\.safetensors was changed"):
        book.require_whole(version)
    shutil.rmtree(folder)
    with pytest.raises(ChampionGoneError, match=f"{folder} is not there"):
        book.require_whole(version)


def test_another_model_under_the_same_key_is_not_taken_for_the_one_that_was_judged(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    first, second = book.read().versions
    folder, other = (Path(book.artifact(version.model).path) for version in (first, second))
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    with pytest.raises(ChampionGoneError, match="another model"):
        book.require_whole(first)


def test_frozen_pairs_are_a_copy_that_notices_every_change(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    source = tmp_path / "frozen.parquet"
    source.write_bytes(b"the pairs of the first day")
    frozen = book.freeze(source, count=3, from_version=1)
    source.write_bytes(b"new pairs")
    path = book.frozen_file(frozen)
    assert path.read_bytes() == b"the pairs of the first day"
    assert (book.frozen_folder(frozen, name="test.parquet") / "test.parquet").read_bytes() == path.read_bytes()
    path.write_bytes(b"the pairs of the other day")
    with pytest.raises(ChampionGoneError, match="was changed"):
        book.frozen_file(frozen)
    path.unlink()
    with pytest.raises(ChampionGoneError, match="cannot be read"):
        book.frozen_file(frozen)


def test_a_file_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    book.path.write_text('{"name": "demo-rew', encoding="utf-8")
    with pytest.raises(ChampionGoneError, match="Restore it from a backup"):
        book.update(lambda record: record)


def test_champion_and_the_one_before_are_never_garbage_and_the_others_are(tmp_path: Path) -> None:
    book = make_book(tmp_path, num_versions=3, champions=(1, 2, 3))
    for path in (tmp_path / "artifacts").rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    models = {version.model.key: version.number for version in book.read().versions}
    garbage = {models.get(item.key) for item in find_garbage(tmp_path, older_than_days=7)} - {None}
    assert garbage == {1}
    wanted = {item.key: item.used_by for item in list_artifacts(tmp_path) if item.stage is StageName.TRAIN_REWARD_MODEL}
    assert {models[key]: users for key, users in wanted.items()} == {
        1: (),
        2: ("demo-reward-model-before",),
        3: ("demo-reward-model-champion",),
    }


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    book = make_book(tmp_path)

    def note(number: int) -> None:
        def change(record: ChampionRecord) -> ChampionRecord:
            decision = Decision(at=MADE_AT, kind="lost", champion_before=2, champion_after=2, text=f"note {number}")
            return record.model_copy(update={"decisions": (*record.decisions, decision)})

        book.update(change)

    threads = [threading.Thread(target=note, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {item.text for item in record_of(book).decisions[2:]} == {f"note {number}" for number in range(8)}


def test_a_lock_that_is_a_link_is_told_in_a_sentence_and_nothing_is_written(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    before = book.path.read_bytes()
    book.path.with_suffix(".lock").unlink(missing_ok=True)
    book.path.with_suffix(".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ChampionError, match=r"is a link to .*elsewhere.* Remove the link"):
        book.update(lambda found: found)
    assert book.path.read_bytes() == before
    assert not (tmp_path / "elsewhere").exists()
