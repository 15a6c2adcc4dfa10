"""A reward that is optimised too far: the rule of train_policy.evidence publishes nearly the best policy.

The whole page, with meters and with judges that share the reward model's taste, is docs/proofs/evidence.md.
"""

import pytest
import torch

from benchmarks.truth.evidence import NUM_SEEDS, Line, line, partial_judge, table, world
from containers.contracts.configs.parts.evidence import EvidenceSettings

pytestmark = pytest.mark.stages


@pytest.fixture(scope="module")
def found() -> Line:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return line("judge", [world(seed) for seed in range(NUM_SEEDS)], settings=EvidenceSettings())
    finally:
        torch.set_num_threads(threads)


def test_nine_tenths_of_the_best_policy_are_published_with_few_looks_and_no_false_stop(found: Line) -> None:
    assert found.enough >= 22
    assert found.false_stops <= 2
    assert found.looks <= 7
    assert found.stopped >= 20


def test_the_last_step_is_far_from_the_best_and_a_judge_of_the_same_taste_sees_nothing() -> None:
    """Else the simulation would say nothing."""
    one = world(0)
    assert one.share(one.last) < 0.9
    same_taste = line("same", [one], settings=EvidenceSettings(), judge=lambda found: partial_judge(found, share=0.9))
    assert same_taste.published[0] == pytest.approx(one.share(one.last), abs=0.05)


def test_the_page_says_of_how_many_worlds(found: Line) -> None:
    assert f"| {found.enough} of {NUM_SEEDS} |" in table([found], num_worlds=NUM_SEEDS)
