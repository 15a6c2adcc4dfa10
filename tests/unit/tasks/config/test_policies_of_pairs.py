"""A policy that is trained on the pairs: what its reference must agree on, and which prompts judge it."""

from pathlib import Path

import pytest

from containers.contracts.configs.compute_reference import ComputeReferenceConfig
from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.names import StageName
from tasks.config.errors import InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.run_files import write_run

DPO = {"train_policy": None, "train_dpo": {"max_length": 128, "lora": None, "loss": "kto", "pack_tokens": 512}}


def test_the_reference_is_computed_as_the_training_will_read_the_pairs(tmp_path: Path) -> None:
    config = load_run_config(write_run(tmp_path, **DPO)).config
    assert config.stage_config(StageName.COMPUTE_REFERENCE) == ComputeReferenceConfig(
        max_length=128, pack_tokens=512, whole_model=True, mismatched=True
    )
    own = {**DPO, "compute_reference": {"pack_tokens": 4096}}
    found = load_run_config(write_run(tmp_path, **own)).config.stage_config(StageName.COMPUTE_REFERENCE)
    assert isinstance(found, ComputeReferenceConfig) and found.pack_tokens == 4096


def test_what_the_training_decides_is_not_set_for_the_reference(tmp_path: Path) -> None:
    settings = {"max_length": 64, "mismatched": True}
    with pytest.raises(InvalidConfigError) as refused:
        load_run_config(write_run(tmp_path, **DPO, compute_reference=settings))
    assert sorted(str(mistake) for mistake in refused.value.mistakes) == [
        f"compute_reference.{key}: is that of train_dpo. Set it there, and leave it out here." for key in settings
    ]


@pytest.mark.parametrize(("wanted", "share"), [({}, 1.0), ({"policy_eval_prompt_fraction": 0.1}, 0.1)])
def test_every_prompt_that_is_set_aside_judges_unless_the_run_says_how_many(
    tmp_path: Path, wanted: dict[str, float], share: float
) -> None:
    filters = {"filter_dataset": {"policy_prompt_fraction": 0.2, **wanted}}
    config = load_run_config(write_run(tmp_path, **DPO, **filters)).config.stage_config(StageName.FILTER_DATASET)
    assert isinstance(config, FilterDatasetConfig)
    assert (config.policy_prompt_fraction, config.policy_eval_prompt_fraction) == (0.2, share)


def test_prompts_that_train_on_rewards_are_left(tmp_path: Path) -> None:
    whole = {"filter_dataset": {"policy_prompt_fraction": 0.2, "policy_eval_prompt_fraction": 1}}
    assert load_run_config(write_run(tmp_path, **DPO, **whole))
    with pytest.raises(InvalidConfigError, match="1 leaves no prompt to train the policy on"):
        load_run_config(write_run(tmp_path, **whole))
