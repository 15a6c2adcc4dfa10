"""A container may stand for another attempt only if its program was told the same; the rest needs a daemon."""

from launch_factory import make_profile, make_spec

from containers.contracts.spec import StageSpec
from containers.launch.arguments import docker_spec
from containers.launch.docker_adopt import spec_difference

WANTED = make_spec(timeout_s=60)


def told(spec: StageSpec, *refused_limits: str) -> str:
    """What stands in the spec file that is mounted into the container."""
    return docker_spec(spec, refused_limits=frozenset(refused_limits)).model_dump_json(indent=2)


def test_run_attempt_and_time_out_make_no_difference() -> None:
    earlier = make_spec(run_id="another", attempt=4, timeout_s=7)
    assert spec_difference(told(earlier), WANTED) == ""


def test_whatever_else_differs_is_named() -> None:
    assert spec_difference(told(make_spec(seed=8)), WANTED) == "its `seed` is another"
    assert spec_difference(told(make_spec(key="cd" * 32)), WANTED) == "its `key` is another"
    assert spec_difference(told(make_spec(profile=make_profile(host_memory_gib=4))), WANTED) == (
        "its `profile` is another"
    )
    assert spec_difference(told(make_spec(image_digest="sha256:2")), WANTED) == "its `image_digest` is another"


def test_a_memory_limit_that_nobody_set_makes_no_difference_and_one_that_somebody_set_does() -> None:
    derived = WANTED.required.model_copy(update={"host_memory_bytes": 2**34, "host_memory_reason": "derived"})
    assert spec_difference(told(WANTED.model_copy(update={"required": derived})), WANTED) == ""
    named = make_spec(profile=make_profile(host_memory_gib=4))
    assert spec_difference(told(named.model_copy(update={"required": derived})), named) == "its `required` is another"


def test_limits_that_the_host_refused_are_still_refused_and_make_no_difference() -> None:
    assert spec_difference(told(WANTED, "memlock"), WANTED) == ""
    assert spec_difference(told(WANTED, "memlock", "stack"), WANTED) == ""
    demands_more = WANTED.model_copy(update={"required": WANTED.required.model_copy(update={"memlock_bytes": 1})})
    assert spec_difference(told(demands_more), WANTED) == "its `required` is another"


def test_a_spec_that_is_gone_or_of_another_version_is_no_match() -> None:
    assert spec_difference("", WANTED) == "its spec is gone"
    assert spec_difference('{"contract_version": 0}', WANTED) == "its spec is of another version"
