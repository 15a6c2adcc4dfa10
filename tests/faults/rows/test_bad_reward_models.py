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

from containers.contracts.names import ADAPTER_FOLDER, MERGED_FOLDER, StageName
from containers.contracts.outcome import FailureKind

pytestmark = [pytest.mark.slow, pytest.mark.stages]

HEAD = "score.weight"
# The certificate is that of the undamaged model.
CHANGED = "the model was changed after it was judged"
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
        (nan_in_the_head, "has a NaN in its score head", FailureKind.DIVERGED, (HEAD, CHANGED)),
        (
            a_head_that_overflows,
            "has finite weights and scores that are not",
            FailureKind.DIVERGED,
            ("the first one that of conversation 1", CHANGED),
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
    kinds = (kind, FailureKind.MISSING_PREREQUISITE)
    for stage, of_stage, words in zip((StageName.EVALUATE_REWARD_MODEL, POLICY), kinds, told, strict=True):
        alone = StageAlone.of(undisturbed_judgement, stage, tmp_path / stage)
        failure = alone.changed(inputs=with_damaged_model(alone, tmp_path / stage / "model", damage)).attempt()
        assert failure is not None and failure.kind is of_stage, failure
        assert words in failure.message, failure.message
        assert not list(alone.output.glob("MANIFEST*"))
    fault.recovered(
        seen=f"{StageName.EVALUATE_REWARD_MODEL} refuses ({kind}) and says which weight or conversation; {POLICY} "
        "refuses what is not the model of its certificate; neither makes anything"
    )


def with_damaged_model(stage: StageAlone, folder: Path, damage: Callable[[Weights], Weights]) -> tuple[object, ...]:
    """The stage's inputs, with a damaged copy in the place of its reward model."""
    (model,) = [item for item in stage.spec.inputs if item.name == "reward_model"]
    # Without the adapter, whose score head would give the damage away before a score is made.
    shutil.copytree(model.path, folder, ignore=shutil.ignore_patterns(ADAPTER_FOLDER))
    for path in (folder / MERGED_FOLDER).glob("*.safetensors"):
        save_file(damage(load_file(path)), path, metadata={"format": "pt"})
    changed = model.model_copy(update={"path": str(folder)})
    return tuple(changed if item is model else item for item in stage.spec.inputs)
