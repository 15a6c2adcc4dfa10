"""pass@k must not depend on which of the completions were looked at."""

from itertools import combinations

import pytest

from containers.evals.paired import holm_adjusted
from containers.evals.pass_at_k import pass_at, pass_at_k


@pytest.mark.parametrize(("num_right", "num_all", "k"), [(0, 4, 2), (1, 4, 2), (3, 8, 4), (8, 8, 8), (2, 5, 1)])
def test_it_is_the_share_of_all_draws_with_a_right_one(num_right: int, num_all: int, k: int) -> None:
    draws = list(combinations([1] * num_right + [0] * (num_all - num_right), k))
    assert pass_at(num_right, num_all, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


def test_every_power_of_two_up_to_the_completions_of_a_prompt_has_a_figure() -> None:
    found = pass_at_k([[1.0, 0.0, 0.0, 0.0]] * 10, name="math_pass_at", confidence=0.95)
    assert [(metric.name, round(metric.value, 3)) for metric in found] == [
        ("math_pass_at_2", 0.5),
        ("math_pass_at_4", 1),
    ]
    assert pass_at_k([[1.0], [0.0]], name="math_pass_at", confidence=0.95) == ()


def test_p_values_of_several_judges_are_adjusted_by_holm_s_rule() -> None:
    assert holm_adjusted([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm_adjusted([0.9, 0.8]) == [1.0, 1.0]
    assert holm_adjusted([]) == []
