"""Two algorithms learn, and two resume bit for bit; `make proofs` does the same with all of them, and for longer."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import learned
from benchmarks.resume import resumed, start_of

pytestmark = [pytest.mark.slow, pytest.mark.stages]


def test_an_algorithm_on_rewards_and_one_on_pairs_solve_more_held_out_sums_than_their_start(tmp_path: Path) -> None:
    few_steps = (
        "train_sft.schedule={max_steps: 240, eval_steps: 120}",
        "train_policy.schedule={max_steps: 40, save_steps: 40}",
    )
    found = learned(tmp_path, ["ppo", "dpo"], seed=1, count=1200, always=few_steps)
    for one in found:
        gain = one.exact.difference
        assert gain.ci_low is not None and gain.ci_low > 0, f"{one.algorithm}: {gain}"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("resume")
    return folder, start_of(folder, seed=3)


@pytest.mark.parametrize("algorithm", ["train_policy ppo", "train_dpo kto"])
def test_a_training_that_is_killed_at_each_kind_of_moment_ends_as_the_undisturbed_one(
    start: tuple[Path, dict[str, Any]], algorithm: str
) -> None:
    folder, made = start
    found = resumed(folder, algorithm, made, seed=3)
    assert found.is_exact, found
    assert found.num_starts == len(found.moments) + 1 >= 6
