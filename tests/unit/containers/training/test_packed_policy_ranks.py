"""Ranks whose packs of completions are uneven in number do not wait for each other, and train what one rank trains."""

from pathlib import Path

import pytest

from containers.contracts.configs.stages import StageConfig
from containers.contracts.names import StageName
from tests.unit.containers.distributed.test_ranks_agree import (
    TOLERANCE,
    Trainings,
    curve_of,
    largest_difference,
    weights_of,
)

pytestmark = [pytest.mark.stages, pytest.mark.slow]


class UnevenPacks(Trainings):
    """A prompt's four completions of four to eight tokens fit into a pack, or they do not."""

    def _config(self, stage: StageName) -> StageConfig:
        return super()._config(stage).model_copy(update={"pack_tokens": 54})


def test_two_ranks_with_uneven_packs_train_the_policy_of_one(tmp_path: Path) -> None:
    trainings = UnevenPacks(tmp_path)
    whole = trainings.output(StageName.TRAIN_POLICY, ranks=1, per_device=8)
    cut = trainings.output(StageName.TRAIN_POLICY, ranks=2, per_device=4)
    names = ("loss", "grad_norm", "reward", "kl")
    assert largest_difference(curve_of(whole, *names), curve_of(cut, *names)) < TOLERANCE
    assert largest_difference(weights_of(whole), weights_of(cut)) < TOLERANCE
    assert "Completions are packed, 54 tokens at a time" in (cut.parent / "events.jsonl").read_text()
