"""A reward model that is no reward model: stock parts train a policy against each of these, and exit with 0."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fault_rows import Fault
from reference import POLICY
from safetensors.torch import load_file, save_file
from stage_alone import StageAlone
from tiny_project import TinyProject

from containers.contracts.names import MERGED_FOLDER, StageName
from containers.contracts.outcome import FailureKind

pytestmark = [pytest.mark.slow, pytest.mark.stages]

HEAD = "score.weight"
Weights = dict[str, torch.Tensor]


def nan_in_the_head(weights: Weights) -> Weights:
    weights[HEAD][0, 0] = float("nan")
    return weights


def a_head_that_overflows(weights: Weights) -> Weights:
    return weights | {HEAD: torch.full_like(weights[HEAD], 3e38)}


def no_head(weights: Weights) -> Weights:
    return {name: value for name, value in weights.items() if name != HEAD}


@pytest.mark.parametrize(
    ("damage", "what", "kind", "told"),
    [
        (nan_in_the_head, "has a NaN in its score head", FailureKind.DIVERGED, (HEAD, HEAD)),
        (
            a_head_that_overflows,
            "has finite weights and scores that are not",
            FailureKind.DIVERGED,
            ("the first one that of conversation 1", "Step 1: "),
        ),
        (no_head, "has no score head", FailureKind.MISSING_PREREQUISITE, (HEAD, HEAD)),
    ],
)
def test_a_reward_model_that_cannot_judge(
    undisturbed_judgement: TinyProject,
    fault: Fault,
    tmp_path: Path,
    damage: Callable[[Weights], Weights],
    what: str,
    kind: FailureKind,
    told: tuple[str, str],
) -> None:
    fault.describe("training", f"a reward model that {what}", parts="stage processes")
    fault.recovery_starts()
    for stage, words in zip((StageName.EVALUATE_REWARD_MODEL, POLICY), told, strict=True):
        alone = StageAlone.of(undisturbed_judgement, stage, tmp_path / stage)
        failure = alone.changed(inputs=with_damaged_model(alone, tmp_path / stage / "model", damage)).attempt()
        assert failure is not None and failure.kind is kind, failure
        assert words in failure.message, failure.message
        assert not list(alone.output.glob("MANIFEST*"))
    fault.recovered(
        seen=f"{StageName.EVALUATE_REWARD_MODEL} and {POLICY} each refuse ({kind}) and say which weight, "
        "conversation or step; neither makes anything"
    )


def with_damaged_model(stage: StageAlone, folder: Path, damage: Callable[[Weights], Weights]) -> tuple[object, ...]:
    """The stage's inputs, with a damaged copy in the place of its reward model."""
    (model,) = [item for item in stage.spec.inputs if item.name == "reward_model"]
    shutil.copytree(model.path, folder)
    for path in (folder / MERGED_FOLDER).glob("*.safetensors"):
        save_file(damage(load_file(path)), path, metadata={"format": "pt"})
    changed = model.model_copy(update={"path": str(folder)})
    return tuple(changed if item is model else item for item in stage.spec.inputs)
