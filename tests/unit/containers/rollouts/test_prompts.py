"""Which prompts the policy trains on and is judged on: those that fit, in an order that a resumed run repeats."""

from pathlib import Path

import pytest

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.harness.errors import BadDataError, MissingPrerequisiteError
from containers.models.chat_template import knows_thinking
from containers.rollouts.prompt_templates import opening_of
from containers.rollouts.prompts import (
    PolicyPrompt,
    PromptOrder,
    read_evaluation_prompts,
    read_training_prompts,
    seeded_subset,
)
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.tiny_policy import CHATML, tiny_tokenizer

pytestmark = pytest.mark.stages

TRAIN = TrainPolicyConfig(max_prompt_length=40)
ROWS = len(tiny_tokenizer())


def test_prompts_that_fit_are_kept_in_order_and_the_others_counted(tmp_path: Path) -> None:
    pairs = write_prompts(tmp_path, train=["Hi", "x" * 200, "No"])
    found = read_training_prompts(pairs, tiny_tokenizer(), TRAIN, num_rows=ROWS)
    assert [prompt.conversation[0]["content"] for prompt in found.prompts] == ["Hi", "No"]
    assert (found.num_over_long, found.num_without_row) == (1, 0)


def test_prompts_that_spell_a_token_without_a_row_are_counted_out_unless_they_are_many(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    texts = ["See <image>", *("Hi" for _ in range(11)), "x" * 200]
    found = read_training_prompts(write_prompts(tmp_path, train=texts), tokenizer, TRAIN, num_rows=ROWS)
    assert (len(found.prompts), found.num_over_long, found.num_without_row) == (11, 1, 1)
    assert found.left_out_text == (
        "1 of 13 prompts are left out: longer than 40 tokens (train_policy.max_prompt_length). 1 of 12 prompts are "
        f"left out: they spell a token without a row in the policy's embedding of {ROWS} rows, the first <image> "
        f"(id {ROWS})."
    )
    pairs = write_prompts(tmp_path, train=["See <image>", "Hi", "Hello"])
    with pytest.raises(BadDataError, match=r"1 of 3 prompts spell a token .* More than 10% is no accident"):
        read_training_prompts(pairs, tokenizer, TRAIN, num_rows=ROWS)
    found = read_training_prompts(pairs, tokenizer, TRAIN, num_rows=ROWS + 1)
    assert (len(found.prompts), found.left_out_text) == (3, "")


def test_both_policy_stages_judge_the_evaluation_prompts_alike(tmp_path: Path) -> None:
    pairs = write_prompts(tmp_path, evaluation=["Hi", "x" * 200, "No"])
    evaluate = EvaluatePolicyConfig(max_prompt_length=40)
    tokenizer = tiny_tokenizer()
    of_training, of_evaluation = (
        read_evaluation_prompts(pairs, tokenizer, config, num_rows=ROWS) for config in (TRAIN, evaluate)
    )
    assert of_training.prompts == of_evaluation.prompts
    assert of_training.num_over_long == of_evaluation.num_over_long == 1


def test_a_policy_of_short_prompts_is_trained_where_it_will_be_judged_on_longer_ones(tmp_path: Path) -> None:
    pairs = write_prompts(tmp_path, evaluation=["x" * 200, "y" * 200])
    tokenizer, told = tiny_tokenizer(), TRAIN.model_copy(update={"evaluation_prompt_length": 400})
    assert len(read_evaluation_prompts(pairs, tokenizer, told, num_rows=ROWS).prompts) == 2
    with pytest.raises(BadDataError, match=r"of which 0 fit in train_policy\.max_prompt_length 40; at least 2 must"):
        read_evaluation_prompts(pairs, tokenizer, TRAIN, num_rows=ROWS)
    with pytest.raises(BadDataError, match=r"of which 0 fit in evaluate_policy\.max_prompt_length 50; at least 2"):
        read_evaluation_prompts(
            pairs, tokenizer, TRAIN.model_copy(update={"evaluation_prompt_length": 50}), num_rows=ROWS
        )


def test_prompts_that_are_all_too_long_are_an_error_with_the_numbers_and_the_setting(tmp_path: Path) -> None:
    pairs = write_prompts(tmp_path, train=["Hi", "Hello"])
    with pytest.raises(BadDataError) as caught:
        read_training_prompts(pairs, tiny_tokenizer(), TrainPolicyConfig(max_prompt_length=8), num_rows=ROWS)
    assert str(caught.value) == (
        "policy_train_prompts.parquet has 2 prompts to train the policy on, of which 0 fit in "
        "train_policy.max_prompt_length 8; at least 1 must. The shortest has 21 tokens, the longest 24. Raise "
        "train_policy.max_prompt_length, or set more prompts aside (filter_dataset.policy_prompt_fraction, "
        "policy_eval_prompt_fraction)."
    )


def test_an_artifact_without_prompts_says_what_is_wrong(tmp_path: Path) -> None:
    pairs = write_prompts(tmp_path, train=[])
    with pytest.raises(
        BadDataError, match=r"has no prompt to train the policy on\. Raise filter_dataset\.policy_prompt"
    ):
        read_training_prompts(pairs, tiny_tokenizer(), TRAIN, num_rows=ROWS)
    (pairs / "policy_train_prompts.parquet").write_bytes(b"half a file")
    with pytest.raises(MissingPrerequisiteError, match="is no readable parquet file of prompts"):
        read_training_prompts(pairs, tiny_tokenizer(), TRAIN, num_rows=ROWS)


def test_passes_use_every_prompt_before_any_comes_again() -> None:
    def of(seed: int) -> list[int]:
        order = PromptOrder(5, seed=seed)
        assert order[12] == PromptOrder(5, seed=seed)[12]
        return [order[position] for position in range(13)]

    order = of(2)
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5))
    assert order == of(2) != of(3)


def test_a_subset_keeps_the_order_and_depends_on_the_seed_alone() -> None:
    prompts = [PolicyPrompt(str(n), "", (), (n,)) for n in range(50)]
    chosen = seeded_subset(prompts, limit=10, seed=1)
    assert len(chosen) == 10
    assert list(chosen) == sorted(chosen, key=lambda prompt: prompt.token_ids)
    assert chosen == seeded_subset(prompts, limit=10, seed=1) != seeded_subset(prompts, limit=10, seed=2)
    assert seeded_subset(prompts, limit=None, seed=1) == seeded_subset(prompts, limit=99, seed=1) == tuple(prompts)


# As Qwen3's: an empty thought where thinking is switched off.
THINKING = CHATML.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
)


@pytest.mark.parametrize(("thinks", "opening"), [(False, "assistant\n<think>\n\n</think>\n\n"), (True, "assistant\n")])
def test_a_policy_that_may_think_begins_before_its_thought_in_training_and_evaluation(
    tmp_path: Path, thinks: bool, opening: str
) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = THINKING
    folder = write_prompts(tmp_path, train=["Hi", "No"])
    trained = read_training_prompts(
        folder, tokenizer, TrainPolicyConfig(max_prompt_length=90, enable_thinking=thinks), num_rows=ROWS
    )
    judged = read_evaluation_prompts(
        folder, tokenizer, EvaluatePolicyConfig(max_prompt_length=90, enable_thinking=thinks), num_rows=ROWS
    )
    for prompt in (*trained.prompts, *judged.prompts):
        assert tokenizer.decode(list(prompt.token_ids)).endswith(opening)
    assert opening_of(tokenizer, thinks=thinks) == f"<|im_start|>{opening}"
    assert knows_thinking(tokenizer) and not knows_thinking(tiny_tokenizer())
