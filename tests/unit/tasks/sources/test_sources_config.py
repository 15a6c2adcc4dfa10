"""A source that cannot be meant is refused where it is written, long before anything is looked up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.config.sources import DatasetSource, ModelSource


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "neither hub_id nor path"),
        ({"hub_id": "org/name", "revision": "main", "path": "x"}, "both hub_id and path"),
        ({"hub_id": "org/name"}, "needs a `revision`"),
        ({"path": "x", "revision": "main"}, "belongs to a hub_id"),
        ({"hub_id": "gpt2", "revision": "main"}, "no hub id"),
        ({"hub_id": "../etc", "revision": "main"}, "no hub id"),
        ({"hub_id": "org/..", "revision": "main"}, "no hub id"),
        ({"hub_id": "org/a..b", "revision": "main"}, "no hub id"),
        ({"hub_id": "--cache/x", "revision": "main"}, "no hub id"),
        ({"hub_id": "org/name/more", "revision": "main"}, "no hub id"),
        ({"hub_id": "/org/name", "revision": "main"}, "no hub id"),
        ({"hub_id": "org/name\n", "revision": "main"}, "no hub id"),
        ({"hub_id": "org/name.git", "revision": "main"}, "no hub id"),
        ({"hub_id": "org/name", "revision": "--force"}, "no revision"),
        ({"hub_id": "org/name", "revision": "a/../b"}, "no revision"),
        ({"hub_id": "org/name", "revision": "main", "rev": "x"}, "rev"),
    ],
)
def test_a_model_source_that_cannot_be_meant_is_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelSource(**values)


@pytest.mark.parametrize("train", ["/etc/passwd", "../up.jsonl", "a/../../b", "~/x", "-o", "a\\..\\b"])
def test_a_pattern_that_leaves_the_repository_is_refused(train: str) -> None:
    with pytest.raises(ValidationError, match="no path inside the repository"):
        DatasetSource(hub_id="org/rows", revision="main", train=train)
    assert DatasetSource(train=train).train == train  # without hub_id it is a local path, and those are free


@given(st.text(max_size=60))
def test_whatever_passes_as_hub_id_is_one_organisation_and_one_name(text: str) -> None:
    try:
        source = ModelSource(hub_id=text, revision="main")
    except ValidationError:
        return
    assert source.hub_id is not None
    organisation, name = source.hub_id.split("/")
    for part in (organisation, name):
        assert part and part.isascii() and not part.startswith((".", "-")) and ".." not in part
