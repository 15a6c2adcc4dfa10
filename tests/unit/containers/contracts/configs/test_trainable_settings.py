"""What of a reward model trains is said once: no key that is read and has no effect."""

import pytest
from pydantic import ValidationError

from containers.contracts.configs.train_reward_model import TrainRewardModelConfig


@pytest.mark.parametrize(
    ("given", "trainable", "has_adapters"),
    [
        ({}, "lora", True),
        ({"lora": {"r": 4}}, "lora", True),
        ({"lora": None}, "full", False),
        ({"trainable": "full"}, "full", False),
        ({"trainable": "head"}, "head", False),
        ({"trainable": "head", "lora": None}, "head", False),
    ],
)
def test_one_of_the_two_keys_is_enough(given: dict[str, object], trainable: str, has_adapters: bool) -> None:
    config = TrainRewardModelConfig.model_validate(given)
    assert (config.trainable, config.lora is not None) == (trainable, has_adapters)
    assert TrainRewardModelConfig.model_validate(config.model_dump()) == config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trainable": "head", "lora": {"r": 4}}, "trainable is `head`, which has no adapters: set lora to null"),
        ({"trainable": "full", "lora": {}}, "trainable is `full`, which has no adapters: set lora to null"),
        ({"trainable": "lora", "lora": None}, "Set lora.r, or set trainable to `full`"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainRewardModelConfig.model_validate(given)


def test_a_word_that_is_no_template_is_refused_where_no_file_was_read_for_it() -> None:
    with pytest.raises(ValidationError, match="`chatml` is no chat template: it never reads `messages`"):
        TrainRewardModelConfig(chat_template="chatml")
