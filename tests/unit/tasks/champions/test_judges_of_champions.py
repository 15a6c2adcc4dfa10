"""What the judge had to do with either policy decides how much a win is worth, so the decision must tell it rightly."""

from pathlib import Path

import pytest

from containers.contracts.names import StageName
from tasks.champions.comparison import _is_of_pairs, _judge_note
from tasks.champions.record import ModelVersion
from tests.unit.factories.champion_factory import make_book, publish, record_of

OLD, NEW = "demo-reward-model version 1", "demo-reward-model version 2"
BLIND = " If it learned from the same pairs as a policy, it cannot see what they got wrong."


def policy(store: Path, stage: StageName, *, reward_model: str) -> ModelVersion:
    version = record_of(make_book(store, num_versions=1, champions=())).versions[0]
    model = publish(store, stage, f"a policy of {stage}")
    return version.model_copy(update={"model": model, "reward_model": reward_model})


@pytest.mark.parametrize(
    ("champion", "challenger", "note"),
    [
        (
            (StageName.TRAIN_DPO, NEW),
            (StageName.TRAIN_DPO, NEW),
            f"{NEW} judged; both policies were trained on pairs, neither against it.{BLIND}",
        ),
        (
            (StageName.TRAIN_POLICY, NEW),
            (StageName.TRAIN_DPO, NEW),
            f"{NEW} judged; the challenger was trained on pairs and not against it, the champion was trained against "
            f"it. That favours the champion.{BLIND}",
        ),
        (
            (StageName.TRAIN_POLICY, OLD),
            (StageName.TRAIN_DPO, NEW),
            f"{NEW} judged; the challenger was trained on pairs and not against it, the champion was trained against "
            f"{OLD}.{BLIND}",
        ),
        (
            (StageName.TRAIN_DPO, OLD),
            (StageName.TRAIN_POLICY, NEW),
            f"{NEW} judged; the champion was trained on pairs and not against it, the challenger was trained against "
            f"it. That favours the challenger.{BLIND}",
        ),
        (
            (StageName.TRAIN_POLICY, NEW),
            (StageName.TRAIN_POLICY, NEW),
            f"{NEW} judged; both policies were trained against it. The one that learnt its errors better wins too.",
        ),
    ],
    ids=["both on pairs", "challenger on pairs", "and another judge", "champion on pairs", "both on rewards"],
)
def test_only_a_policy_on_rewards_is_said_to_be_trained_against_its_judge(
    tmp_path: Path, champion: tuple[StageName, str], challenger: tuple[StageName, str], note: str
) -> None:
    old, new = (
        policy(tmp_path / name, stage, reward_model=reward_model)
        for name, (stage, reward_model) in (("old", champion), ("new", challenger))
    )
    assert _judge_note(old, new) == note
    assert _is_of_pairs(new) is (challenger[0] is StageName.TRAIN_DPO)
