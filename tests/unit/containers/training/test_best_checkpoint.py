"""The model that is published is the one whose figure is reported, however seldom checkpoints are asked for."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.stages import train_reward_model
from containers.training import loop as training
from containers.training import program
from tests.unit.factories.reward_model_factory import reward_model_config, training_info_of
from tests.unit.factories.spec_factory import colour_rows, flipped, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages


def _that_gets_worse(folder: Path, schedule: TrainingSchedule) -> StageContext:
    """A training whose validation pairs are the wrong way round: the longer it learns, the higher their loss."""
    pairs = write_pairs(folder / "pairs", colour_rows(96), flipped(colour_rows(24, seed=99)))
    inputs = {"pairs": pairs, "start_model": save_causal_model(folder / "start", scale=0.02)}
    return make_context(folder, StageName.TRAIN_REWARD_MODEL, reward_model_config(schedule=schedule), inputs)


@pytest.mark.parametrize(
    "save_steps",
    [pytest.param(8, id="every other evaluation"), pytest.param(5, id="beside the evaluations"), 3],
)
def test_the_step_with_the_lowest_loss_is_published_although_it_was_not_to_be_saved(
    tmp_path: Path, save_steps: int
) -> None:
    context = _that_gets_worse(tmp_path, TrainingSchedule(max_steps=16, eval_steps=4, save_steps=save_steps))
    train_reward_model.run(context)
    info = training_info_of(context)
    assert info.best_step == 4
    kept = context.checkpoints / "checkpoint-4"
    published, saved = (
        load_file(folder / "adapter_model.safetensors") for folder in (context.output / "adapter", kept)
    )
    assert published.keys() == saved.keys()
    assert all((published[name] == saved[name]).all() for name in saved)
    steps = {int(path.name.removeprefix("checkpoint-")) for path in context.checkpoints.glob("checkpoint-*")}
    scheduled = [step for step in range(1, 16) if step % save_steps == 0]
    assert steps == {4, 16, *scheduled[-2:]}


def test_a_best_step_without_a_checkpoint_is_an_error_and_no_older_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _that_gets_worse(tmp_path, TrainingSchedule(max_steps=8, eval_steps=2, save_steps=4))
    train = training.train

    def best_was_elsewhere(stage: StageContext, trainer: object, *arguments: object, **rest: object) -> None:
        train(stage, trainer, *arguments, **rest)  # type: ignore[arg-type]
        trainer.state.best_global_step = 3  # type: ignore[attr-defined]

    with monkeypatch.context() as patch:
        patch.setattr(program, "train", best_was_elsewhere)
        with pytest.raises(StageError, match=r"those of checkpoint-2, .* was at step 3, which has no"):
            train_reward_model.run(context)
