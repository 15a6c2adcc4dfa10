"""How many steps a policy needed must not depend on one lucky step."""

import pytest

from benchmarks.critic_starts import steps_to

pytestmark = pytest.mark.stages


def test_the_level_is_reached_by_the_mean_of_several_steps() -> None:
    assert steps_to([0.9, 0.1, 0.1, 0.1, 0.1]) is None
    assert steps_to([0.1, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]) == 6
    assert steps_to([1.0] * 4) is None, "fewer steps than the mean is taken of"
