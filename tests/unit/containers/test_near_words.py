"""What somebody meant is suggested, and nothing is where two names only share a part."""

import pytest

from containers.contracts.names import StageName
from containers.near_words import nearest_word

STAGES = tuple(StageName)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("train_rm", "train_reward_model"),
        ("eval_rm", "evaluate_reward_model"),
        ("train-rm", "train_reward_model"),
        ("train_reward", "train_reward_model"),
        ("train_sftt", "train_sft"),
        ("sft", "train_sft"),
        ("train_polcy", "train_policy"),
        ("eval_policy", "evaluate_policy"),
        ("filter", None),
        ("filter_data", "filter_dataset"),
        ("prompts", "filter_prompts"),
        ("Train_Policy", "train_policy"),
        ("train_ppo", "train_dpo"),
        ("train", None),
        ("evaluate", None),
        ("nonsense", None),
    ],
)
def test_a_stage_is_known_by_typos_abbreviations_and_initials(word: str, meant: str | None) -> None:
    assert nearest_word(word, STAGES) == meant


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("betta", ("beta", "seed"), "beta"),
        ("lr", ("learning_rate", "weight_decay"), "learning_rate"),
        ("trian", ("run", "retrain", "train"), "train"),
        ("--versoin", ("--version", "--help"), "--version"),
        ("anything", (), None),
    ],
)
def test_keys_commands_and_options_are_known_the_same_way(word: str, known: tuple[str, ...], meant: str | None) -> None:
    assert nearest_word(word, known) == meant
