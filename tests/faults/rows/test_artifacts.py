"""Finished work that was damaged, lost or wanted twice, and disks and data that are not what they should be."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_rows import Fault
from reference import REWARD, Reference, assert_went_on, own_store
from tiny_project import Driven, TinyProject, weights_digest

from containers.contracts.names import MANIFEST_FILE, StageName
from containers.contracts.outcome import FailureKind

pytestmark = [pytest.mark.slow, pytest.mark.stages]

FILTER, BUILD = StageName.FILTER_DATASET, StageName.BUILD_BASE_MODEL
_MIB = 1024**2


def said(driven: Driven) -> str:
    """Everything that a person was told."""
    return "\n".join(str(event.get("said", "")) + str(event.get("text", "")) for event in driven.events)


def flip_a_bit(folder: Path) -> str:
    victim = next(folder.rglob("*.safetensors"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    return "was changed"


def delete_the_artifact(folder: Path) -> str:
    shutil.rmtree(folder)
    return "its artifact is gone"


def delete_a_file(folder: Path) -> str:
    next(folder.rglob("*.safetensors")).unlink()
    return "is missing"


def halve_the_manifest(folder: Path) -> str:
    manifest = folder / MANIFEST_FILE
    manifest.write_bytes(manifest.read_bytes()[: manifest.stat().st_size // 2])
    return "cannot be read"


def add_a_file(folder: Path) -> str:
    (folder / "pickled.bin").write_bytes(b"not of this artifact")
    return "is not in the manifest"


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (flip_a_bit, "one bit flipped in a safetensors file of a finished artifact"),
        (delete_the_artifact, "a finished artifact deleted"),
        (delete_a_file, "a file of a finished artifact deleted"),
        (halve_the_manifest, "the manifest of a finished artifact cut in half"),
        (add_a_file, "a foreign file put into a finished artifact"),
    ],
)
def test_damaged_artifact(
    tiny: TinyProject, undisturbed: Reference, fault: Fault, damage: Callable[[Path], str], what: str
) -> None:
    fault.describe("artifacts", what, parts="artifact store")
    name, _, setting = own_store(tiny, f"damaged-{damage.__name__.replace('_', '-')}", REWARD)
    first = tiny.drive(BUILD, f"run.name={name}", setting)
    assert first.wait() == 0, first.text
    artifact = tiny.artifact(BUILD, name)
    before = weights_digest(artifact)
    wanted = damage(artifact)
    fault.recovery_starts()
    again = tiny.drive(BUILD, f"run.name={name}", setting)
    assert again.wait() == 0, again.text
    assert again.statuses == {FILTER: "reused", BUILD: "ran"}
    assert wanted in said(again)
    assert weights_digest(tiny.artifact(BUILD, name)) == before
    fault.recovered(seen=f"the run says “{wanted}”, makes that one again, with the same content", repeated="that stage")


def test_two_pipelines_at_once_on_the_same_stages(tiny: TinyProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe("artifacts", "two runs started at the same moment that want the same stages", parts="two processes")
    _, store, setting = own_store(tiny, "twins", REWARD)
    fault.recovery_starts()
    both = [tiny.drive(REWARD, f"run.name=twin-{letter}", setting) for letter in "ab"]
    assert [driven.wait() for driven in both] == [0, 0], both[0].text + both[1].text
    attempts = list((tiny.folder / "outputs" / store).glob(f"attempts/{REWARD}/*/attempt-*"))
    assert len(attempts) == 1
    assert sorted(driven.statuses[REWARD] for driven in both) == ["ran", "reused"]
    waiting = next(driven for driven in both if driven.statuses[REWARD] == "reused")
    assert "is at the same work; waiting for it" in said(waiting)
    assert tiny.artifact(REWARD, "twin-a") == tiny.artifact(REWARD, "twin-b")
    fault.recovered(seen="one trains, the other says which run it waits for, and uses the same artifact")


@contextlib.contextmanager
def small_disk(folder: Path, *, mib: int) -> Iterator[None]:
    """A tmpfs of that size, which only root can mount."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("NO TMPFS: mounting a small disk needs root and the right to mount; nothing was tested.")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_disk_full_in_training(tiny: TinyProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe("disk and memory", "the disk fills up while the reward model trains", parts="tmpfs of 48 MiB")
    store = tiny.folder / "outputs" / "full-store"
    with small_disk(store, mib=48):
        name, store_name, setting = own_store(tiny, "full", REWARD, store="full-store")
        driven = tiny.drive(REWARD, f"run.name={name}", setting)
        work = tiny.wait_for_step(REWARD, 7, of=driven, store=store_name)
        filler = store / "filler"
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(b"0" * 4096)
        assert driven.wait() == 1
        failure = next(event for event in driven.events if "error" in event)["text"]
        assert FailureKind.DISK_FULL in failure
        assert not (store / "artifacts" / REWARD).exists()
        filler.unlink()
        fault.recovery_starts()
        again = tiny.drive(REWARD, f"run.name={name}", setting)
        assert again.wait() == 0, again.text
        repeated = assert_went_on(work, tiny.artifact(REWARD, name), REWARD, undisturbed)
    fault.recovered(
        seen="fails as disk_full; once there is room, the same command goes on bit for bit", repeated=repeated
    )


def test_zero_rows_left(tiny: TinyProject, undisturbed: Reference, fault: Fault) -> None:
    fault.describe("training", "a filter that leaves no row (`languages: [swahili]`)", parts="filter_dataset")
    name, _, setting = own_store(tiny, "zero", REWARD)
    fault.recovery_starts()
    driven = tiny.drive(REWARD, f"run.name={name}", setting, "filter_dataset.languages=[swahili]")
    assert driven.wait() == 1
    text = json.dumps(driven.events[-1], ensure_ascii=False)
    assert "Too few rows are left" in text
    assert BUILD not in driven.statuses
    fault.recovered(seen="refused before any model is built, with the funnel and the values that `language` holds")
