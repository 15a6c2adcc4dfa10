"""Ranks that do not find each other train alone, each into the same folder, and exit with 0."""

from pathlib import Path

import pytest

from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.contracts.stage_configs import TrainRewardModelConfig
from containers.stages.errors import MissingPrerequisiteError
from containers.stages.ranks import join_ranks, spread_over_ranks
from tests.unit.stages.spec_factory import make_context

pytestmark = pytest.mark.stages

TWO_RANKS = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)


def test_a_lone_rank_of_a_plan_for_two_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    context = make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, TrainRewardModelConfig(), {}, batch=TWO_RANKS)
    with pytest.raises(MissingPrerequisiteError, match="The batch plan has 2 ranks, this process is one of 1"):
        join_ranks(context)


def test_without_other_ranks_all_work_is_done_here() -> None:
    assert spread_over_ranks([1, 2, 3], lambda items: [item * 2 for item in items]) == [2, 4, 6]
