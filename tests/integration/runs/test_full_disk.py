"""A disk that fills up under a stage: the run says what is free, publishes nothing, and goes on once there is room."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from short_runs import end, read_until, start

pytestmark = [pytest.mark.slow, pytest.mark.stages]

_SIZE_MIB = 400


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("FULL DISK NOT TESTED: to mount a small tmpfs needs root and leave to mount.")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that leaves no room for another page."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(64 * 1024))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return filler


def test_a_disk_that_is_full_is_said_with_what_is_free_and_the_next_run_goes_on(served: Path, small_disk: Path) -> None:
    changes = ("run.name=full", f"run.output_dir={small_disk}/out", "runtime.timeout_s.build_base_model=0.1")

    def run(*, full: bool) -> str:
        running = start(served, *changes)
        try:
            said = read_until(running, "… filter_dataset")
            filler = fill(small_disk) if full else None
            said += running.communicate(timeout=200)[0]
            if filler is not None:
                filler.unlink()
        finally:
            end(running)
        assert running.returncode == 1, said
        assert "Traceback" not in said
        return said

    said = run(full=True)
    assert "filter_dataset failed (disk_full)" in said
    assert "MiB free" in said
    assert not list(small_disk.glob("store/artifacts/*/*"))
    again = run(full=False)
    assert "✔ filter_dataset" in again
    assert len(list(small_disk.glob("store/artifacts/filter_dataset/*/MANIFEST.json"))) == 1
