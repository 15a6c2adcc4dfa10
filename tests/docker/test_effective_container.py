"""Declared is effective: daemon and process inside both say what the container got; another one never starts."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from containers.contracts.hardware import MeasuredContract
from containers.contracts.names import MEASURED_FILE
from containers.launch.base import CreateRefusedError
from containers.launch.docker.effective import CONTAINER_FILE, ContainerFindings
from containers.launch.docker.runtime import DockerRuntime
from tests.unit.factories.launch_factory import make_input, make_launch, make_profile, make_spec

pytestmark = pytest.mark.docker

Names = Callable[[], list[str]]


@pytest.fixture
def image_with_volume(client: docker.DockerClient, stage_image: str) -> Iterator[str]:
    dockerfile = io.BytesIO(f"FROM {stage_image}\nVOLUME /cache\n".encode())
    image, _ = client.images.build(fileobj=dockerfile, tag="rlhf-test:volume")
    yield "rlhf-test:volume"
    client.images.remove(str(image.id), force=True)


def test_the_daemon_and_the_program_agree_that_the_stage_got_what_was_declared(
    tmp_path: Path, stage_image: str
) -> None:
    (tmp_path / "pairs").mkdir()
    spec = make_spec(
        timeout_s=120,
        profile=make_profile(host_memory_gib=2, shm_size_gib=0.25),
        inputs=(make_input("pairs", tmp_path / "pairs"),),
    )
    launch = make_launch(tmp_path, spec, image=stage_image)
    DockerRuntime().run(launch)
    told = ContainerFindings.model_validate_json((launch.spec_folder / CONTAINER_FILE).read_bytes())
    measured = MeasuredContract.model_validate_json((launch.work_folder / MEASURED_FILE).read_bytes())
    assert told.drift == "" and measured.drifted == ()
    inside = {finding.name: finding.found for finding in measured.findings}
    assert (inside["/dev/shm"], inside["memory limit"], inside["capabilities"]) == ("256 MiB", "2.00 GiB", "none")
    assert (inside["mount /"], inside["mount /rlhf/inputs/pairs"], inside["mount /rlhf/work"]) == ("ro", "ro", "rw")
    assert (inside["network"], inside["user"], inside["new privileges"]) == ("loopback", "not root", "none")


def test_an_image_that_brings_a_second_place_to_write_is_refused_before_its_program_starts(
    tmp_path: Path, image_with_volume: str, names: Names
) -> None:
    launch = make_launch(tmp_path, make_spec(timeout_s=120), image=image_with_volume)
    program = "from pathlib import Path; Path('ran').touch()"
    with pytest.raises(CreateRefusedError, match=r"mounts: .* the container has /cache \(writable\)"):
        DockerRuntime(command=("python", "-c", program)).run(launch)
    assert not (launch.work_folder / "ran").exists()
    assert names() == [], "it is removed"
    findings = json.loads((launch.spec_folder / CONTAINER_FILE).read_text())["findings"]
    assert [item["name"] for item in findings if item["verdict"] == "drift"] == ["mounts"]
