"""What a training leaves on disk must tell one story, also where a second attempt told part of it again."""

import json
from pathlib import Path

import pytest

from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.names import StageName
from containers.training.records import write_curves
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages


def test_curves_of_a_resumed_run_hold_one_point_per_step_the_later_one(tmp_path: Path) -> None:
    context = make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, TrainRewardModelConfig(), {})
    for step, loss in ((1, 0.9), (2, 0.8), (3, 0.7)):
        context.recorder.metrics(step, {"loss": loss})
    context.recorder.metrics(2, {"eval_loss": 0.85})
    context.recorder.note("Resuming from checkpoint-2.")
    for step, loss in ((3, 0.71), (4, 0.6)):
        context.recorder.metrics(step, {"loss": loss})
    write_curves(context)
    points = [json.loads(line) for line in (context.output / "curves.jsonl").read_text().splitlines()]
    assert [(point["step"], point["values"]) for point in points] == [
        (1, {"loss": 0.9}),
        (2, {"eval_loss": 0.85}),
        (2, {"loss": 0.8}),
        (3, {"loss": 0.71}),
        (4, {"loss": 0.6}),
    ]
