"""Whatever a Docker daemon answers, or does not, becomes a reason in plain words within seconds."""

import gc
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import requests
from fakes.docker_daemon import FakeDaemon

from containers.contracts.hardware import GIB
from containers.launch.docker.state import DockerState, ImageState, read_docker, read_image, why_no_image

SOURCES = "sha256:" + "a" * 64
# dockerd 20.10.24, asked for images of these names.
REFUSED_NAMES = [
    ("--privileged", "no such image: --privileged: invalid reference format", "invalid reference format"),
    (
        "Foo",
        "no such image: Foo: invalid reference format: repository name must be lowercase",
        "invalid reference format: repository name must be lowercase",
    ),
]


@pytest.fixture
def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """DOCKER_HOST leads to a socket on which nobody listens."""
    path = tmp_path / "deaf.sock"
    with socket.socket(socket.AF_UNIX) as unheard:
        unheard.bind(str(path))
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        yield


def test_a_daemon_that_answers_is_read(daemon: FakeDaemon) -> None:
    state = read_docker()
    assert state.answers
    assert (state.version, state.runtimes, state.memory_bytes) == ("27.0.1", ("runc",), 64 * GIB)


def test_a_daemon_that_hangs_or_talks_nonsense_gives_a_reason(daemon: FakeDaemon) -> None:
    daemon.behaviour = "hang"
    assert read_docker(timeout_s=1).problem == "the daemon did not answer within 1 s"
    daemon.behaviour = "nonsense"
    assert read_docker().problem.startswith("the daemon's answer cannot be used")
    daemon.behaviour = "error"
    assert "could not find bridge docker0" in read_docker().problem


@pytest.mark.usefixtures("no_daemon")
def test_without_a_socket_the_way_out_is_named_as_one_types_it() -> None:
    state = read_docker()
    assert state.problem == "there is no Docker socket"
    assert "--set runtime.kind=process" in state.advice
    assert read_image("any").problem == "cannot be looked up: there is no Docker socket"


@pytest.mark.usefixtures("deaf")
def test_a_socket_without_a_daemon_behind_it_is_told_apart() -> None:
    state = read_docker()
    assert state.problem == "the Docker socket is there, but no daemon listens"
    assert "systemctl start docker" in state.advice


@pytest.mark.usefixtures("deaf")
def test_asking_where_nobody_listens_leaves_no_socket_open() -> None:
    """The SDK alone leaves one per question."""
    gc.collect()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        read_docker()
        read_image("any")
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


def test_no_gpus_are_handed_out_by_a_daemon_that_knows_none() -> None:
    assert not DockerState(version="20.10", runtimes=("runc",)).hands_out_gpus


def test_an_image_from_the_same_sources_lacks_nothing(daemon: FakeDaemon) -> None:
    daemon.add_image("rlhf-stage:cpu", labels={"rlhf.stages_digest": SOURCES})
    image = read_image("rlhf-stage:cpu")
    assert image.digest.startswith("sha256:")
    assert image.lack(stages_digest=SOURCES) == ("", "")


def test_an_image_says_what_it_was_built_with_beside_the_usual(daemon: FakeDaemon) -> None:
    daemon.add_image("plain:gpu", labels={"rlhf.stages_digest": SOURCES, "rlhf.extras": ""})
    daemon.add_image("more:gpu", labels={"rlhf.stages_digest": SOURCES, "rlhf.extras": "vllm==0.29.0 einops"})
    assert read_image("plain:gpu").extras == ()
    assert read_image("more:gpu").extras == ("vllm==0.29.0", "einops")


def test_an_image_that_is_missing_stale_or_somebody_elses_says_so(daemon: FakeDaemon) -> None:
    daemon.add_image("old:cpu", labels={"rlhf.stages_digest": "sha256:" + "b" * 64})
    daemon.add_image("busybox:latest", labels={})
    stale, foreign, missing = (
        read_image(name).lack(stages_digest=SOURCES) for name in ("old:cpu", "busybox:latest", "new:cpu")
    )
    assert stale[0] == "was built from other stage programs (sha256:bbbbbbbbbbbb) than the present ones " + (
        "(sha256:aaaaaaaaaaaa)"
    )
    assert "make image IMAGE=old:cpu" in stale[1]
    assert foreign[0] == "is no stage image (it has no label rlhf.stages_digest)"
    assert "runtime.image" in foreign[1]
    assert "IMAGE=busybox" not in foreign[1], "nobody's own image may be built over"
    assert missing == ("is not on this machine", "`make image IMAGE=new:cpu` builds it; runtime.image names another.")


@pytest.mark.parametrize("labels", [None, {}, {"rlhf.stages_digest": "sha256:" + "b" * 64}])
def test_an_image_that_may_be_for_gpus_is_not_built_again_on_a_base_without_cuda(
    daemon: FakeDaemon, labels: dict[str, str] | None
) -> None:
    if labels is not None:
        daemon.add_image("rlhf-stage:gpu", labels=labels)
    _, advice = read_image("rlhf-stage:gpu").lack(stages_digest=SOURCES)
    assert "make image IMAGE=rlhf-stage:" in advice and "for GPUs with BASE_IMAGE=… too" in advice


@pytest.mark.parametrize(("name", "text", "why"), REFUSED_NAMES)
def test_what_cannot_be_a_name_is_said_once(name: str, text: str, why: str) -> None:
    response = requests.Response()
    response.status_code = 400
    problem, advice = why_no_image(docker.errors.APIError("error", response=response, explanation=text), name)
    assert problem == f"cannot be the name of an image: {why}"
    assert "runtime.image" in advice


@pytest.mark.docker
def test_the_real_daemon_answers_with_version_and_memory() -> None:
    state = read_docker()
    assert state.answers and state.version and state.memory_bytes > GIB
    assert "runc" in state.runtimes
    assert read_image("rlhf-no-such-image:never").problem == "is not on this machine"


@pytest.mark.docker
@pytest.mark.parametrize(("name", "text", "why"), REFUSED_NAMES)
def test_the_real_daemon_still_refuses_names_in_these_words(name: str, text: str, why: str) -> None:
    assert read_image(name) == ImageState(
        name=name,
        problem=f"cannot be the name of an image: {why}",
        advice="Correct runtime.image, or leave it out.",
    )
