"""An image says which libraries it holds, each time the same; what it said is kept."""

import json
from pathlib import Path

import pytest

from containers.contracts.programs import Sources, counted_libraries
from containers.launch.base import DaemonInfrastructureError
from containers.launch.docker import libraries
from containers.launch.docker.libraries import image_libraries
from containers.launch.docker.runtime import connect, stage_image_digest

pytestmark = pytest.mark.docker

NAMES = counted_libraries(Sources().libraries)


def test_an_image_gives_the_same_answer_each_time_and_leaves_no_container(stage_image: str) -> None:
    digest, client = stage_image_digest(stage_image), connect()
    before = {container.id for container in client.containers.list(all=True)}
    # One that is followed while it ends loses its output every other time.
    answers = [image_libraries(digest, NAMES, folder=None) for _ in range(6)]
    assert {"python", "torch", "transformers", "trl"} <= answers[0].keys()
    assert answers[0]["torch"] != "absent"
    assert all(answer == answers[0] for answer in answers)
    assert {container.id for container in client.containers.list(all=True)} == before


def test_it_is_asked_once_and_again_only_for_more(stage_image: str, tmp_path: Path) -> None:
    digest = stage_image_digest(stage_image)
    found = image_libraries(digest, ["torch"], folder=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text(json.dumps(found | {"torch": "kept"}), encoding="utf-8")
    assert image_libraries(digest, ["torch"], folder=tmp_path)["torch"] == "kept"
    assert image_libraries(digest, ["torch", "trl"], folder=tmp_path)["torch"] == found["torch"]


def test_an_image_without_our_program_says_nothing_and_a_lost_answer_is_an_error(
    stage_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = stage_image_digest(stage_image)
    monkeypatch.setattr(libraries, "_COMMAND", ("python", "-m", "no_such_module"))
    assert image_libraries(digest, ["torch"], folder=None) == {}
    monkeypatch.setattr(libraries, "_COMMAND", ("python", "-c", ""))
    with pytest.raises(DaemonInfrastructureError, match="returned no answer"):
        image_libraries(digest, ["torch"], folder=None)
