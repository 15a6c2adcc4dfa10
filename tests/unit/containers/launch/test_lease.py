"""A lock that is misread kills somebody's training or blocks it for ever; all with real locks and real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from containers.launch.lease import taken_if_free
from tasks.store.lock import lock_path, sole_worker


def is_held(lock: Path | None) -> bool:
    with taken_if_free(lock) as is_free:
        return not is_free


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "key.lock"
    path.touch()
    return path


def test_a_lock_that_a_run_holds_is_held_until_the_run_is_done(tmp_path: Path) -> None:
    work = tmp_path / "key"
    with sole_worker(work, holder="run", say=lambda text: None, should_stop=lambda: False):
        assert is_held(lock_path(work))
        with taken_if_free(lock_path(work)) as is_free:
            assert not is_free
        assert is_held(lock_path(work)), "looking at it did not free it"
    assert not is_held(lock_path(work))


def test_a_lock_is_free_the_moment_its_holder_dies(lock: Path) -> None:
    program = (
        f"import fcntl, time; f = open({str(lock)!r}); fcntl.flock(f, 2); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_held(lock)
        holder.kill()
        holder.wait()
        assert not is_held(lock)


def test_looking_leaves_a_free_lock_free(lock: Path) -> None:
    assert not is_held(lock)
    with sole_worker(lock.with_suffix(""), holder="run", say=pytest.fail, should_stop=lambda: False):
        pass


def test_what_is_taken_is_held_for_the_block_and_free_again_after_an_error(lock: Path) -> None:
    with pytest.raises(ZeroDivisionError), taken_if_free(lock) as is_free:
        assert is_free
        assert is_held(lock)
        raise ZeroDivisionError
    assert not is_held(lock)


def test_a_lock_whose_file_is_gone_is_free_and_is_not_made(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.lock", tmp_path / "no" / "folder" / "gone.lock", None):
        assert not is_held(path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_tried_counts_as_held(tmp_path: Path) -> None:
    link = tmp_path / "link.lock"
    link.symlink_to(tmp_path / "elsewhere")
    assert is_held(link)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_another_users_lock_counts_as_held(lock: Path) -> None:
    lock.chmod(0o000)
    assert is_held(lock)
