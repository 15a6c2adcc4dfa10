"""One worker per stage key; a lock that somebody replaced is named, never followed."""

from pathlib import Path

import pytest

from tasks.prefect_sync.cancellation import never
from tasks.store.lock import LockError, lock_path, sole_worker


@pytest.mark.parametrize("there", ["a link to a file", "a link to nothing", "a folder"])
def test_a_lock_that_is_no_file_is_refused_in_a_sentence(tmp_path: Path, there: str) -> None:
    work = tmp_path / "work"
    target = tmp_path / "target"
    if there == "a folder":
        lock_path(work).mkdir()
    else:
        lock_path(work).symlink_to(target)
    if there == "a link to a file":
        target.write_text("precious", encoding="utf-8")
    with (
        pytest.raises(LockError, match=r"work\.lock is a (link to .*target|folder).* Remove the (link|folder)"),
        sole_worker(work, holder="me", say=print, should_stop=never),
    ):
        pass
    assert not target.exists() or target.read_text(encoding="utf-8") == "precious"


def test_a_holder_file_that_is_a_link_is_replaced_and_its_target_left(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious", encoding="utf-8")
    (tmp_path / "work.holder.json").symlink_to(target)
    with sole_worker(tmp_path / "work", holder="me", say=print, should_stop=never):
        assert not (tmp_path / "work.holder.json").is_symlink()
    assert target.read_text(encoding="utf-8") == "precious"
