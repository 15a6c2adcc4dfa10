"""A plan reckons with the pairs as they are: their tokens, not max_length, decide memory, time and what is left out."""

from pathlib import Path
from typing import Any

import pytest

from containers.contracts.funnel import Funnel
from containers.contracts.names import FUNNEL_FILE, TRAIN_PAIRS_FILE, StageName
from tasks.plan.run_plan import plan_run
from tasks.plan.text import figure_text, render_plan
from tests.unit.factories.plan_runs import figure_of, pair, run_on


def no_longer_than(tokens: int) -> dict[str, Any]:
    """Sections of a run whose conversations have at most so many tokens."""
    policy = {"max_prompt_length": tokens * 3 // 4, "max_completion_length": tokens // 4}
    return {
        "train_reward_model": {"max_length": tokens, "lora": {"r": 8}},
        "train_policy": {**policy, "lora": {"r": 8}, "schedule": {"max_steps": 30}},
        "evaluate_policy": policy,
    }


def test_tokens_are_counted_with_the_tokenizer_of_the_model_and_said_so(tmp_path: Path) -> None:
    plan = plan_run(run_on(tmp_path, [pair(100, 20, 30)] * 150))
    spread, how = plan.lengths
    assert spread == (
        "prompts 108 (middle), 108 (95 % have no more), 108 (longest) tokens; "
        "answers 32 (middle), 32 (95 % have no more), 32 (longest) tokens"
    )
    assert how == (
        f"150 of 150 rows, before any filter but max_characters, were looked at; tokens counted with "
        f"{tmp_path}/model/tokenizer.json, and 5 more a turn of the user, 5 a turn of the assistant"
    )
    # A packed pair has its prompt once; a batch has 8 pairs.
    assert figure_text(figure_of(plan, StageName.TRAIN_REWARD_MODEL, "tokens a step")) == "1,296 tokens (estimated)"
    text = render_plan(plan)
    assert f"  lengths   {spread}\n            {how}\n" in text


def test_without_a_tokenizer_characters_are_counted_and_the_ratio_is_said(tmp_path: Path) -> None:
    plan = plan_run(run_on(tmp_path, [pair(100, 20, 30)] * 150, tokenizer=False))
    assert plan.lengths[0].startswith("prompts 58 (middle)")
    assert "tokens estimated from characters, 4 to a token, and 5 more a turn of the user" in plan.lengths[1]


def test_pairs_that_are_too_long_are_counted_and_leave_the_epoch(tmp_path: Path) -> None:
    pairs = [pair(100, 20, 30)] * 120 + [pair(100, 400, 30)] * 40
    plan = plan_run(run_on(tmp_path, pairs, **no_longer_than(256)))
    too_long = figure_of(plan, StageName.TRAIN_REWARD_MODEL, "over max_length 256")
    assert figure_text(too_long) == (
        "40 of the 160 pairs looked at (estimated; 25.0% of them, left out of the training)"
    )
    examples = figure_of(plan, StageName.TRAIN_REWARD_MODEL, "examples an epoch")
    assert figure_text(examples) == "96 pairs (estimated)"  # of at most 128
    assert figure_of(plan, StageName.TRAIN_REWARD_MODEL, "steps").value == 12
    assert plan.warnings == (
        "train_reward_model.max_length: 25.0% of the 160 pairs looked at are longer than 256 tokens and would be left "
        "out. Raise it where that is too many.",
    )


def test_guessed_tokens_take_no_example_away(tmp_path: Path) -> None:
    pairs = [pair(100, 20, 30)] * 140 + [pair(100, 800, 30)] * 20
    plan = plan_run(run_on(tmp_path, pairs, tokenizer=False, **no_longer_than(256)))
    assert figure_of(plan, StageName.TRAIN_REWARD_MODEL, "over max_length 256").value == 20
    assert figure_of(plan, StageName.TRAIN_REWARD_MODEL, "examples an epoch").value == 128
    assert plan.warnings == ()


def test_a_length_into_which_nothing_fits_is_a_warning_with_the_shortest(tmp_path: Path) -> None:
    plan = plan_run(run_on(tmp_path, [pair(100, 20, 30)] * 150, **no_longer_than(64)))
    assert plan.warnings == (
        "train_reward_model.max_length: not one of the 150 pairs looked at fits into 64 tokens; the shortest has about "
        "140. Raise it.",
        "train_policy.max_prompt_length: not one of the 150 prompts looked at fits into 48 tokens; the shortest has "
        "about 108. Raise it.",
    )


def test_prompts_that_are_too_long_for_the_policy_are_counted_for_it_alone(tmp_path: Path) -> None:
    pairs = [pair(100, 20, 30)] * 120 + [pair(300, 20, 30)] * 40
    policy = {"max_prompt_length": 200, "lora": {"r": 8}}
    plan = plan_run(run_on(tmp_path, pairs, train_policy=policy))
    assert figure_of(plan, StageName.TRAIN_POLICY, "over max_prompt_length 200").value == 40
    assert figure_of(plan, StageName.TRAIN_REWARD_MODEL, "over max_length").value == 0


def test_activations_follow_the_longest_pair_and_not_the_length_that_is_allowed(tmp_path: Path) -> None:
    def activations(length: int) -> float:
        model = {"max_length": 100_000, "lora": {"r": 8}, "pack": False}
        loaded = run_on(tmp_path, [pair(100, 20, length)] * 150, train_reward_model=model, **LONG)
        return figure_of(plan_run(loaded), StageName.TRAIN_REWARD_MODEL, "activations").value or 0

    # 140 and 1,110 tokens, and a tenth more of each.
    assert activations(1000) / activations(30) == pytest.approx((1.1 * 1110) / (1.1 * 140), rel=1e-3)


LONG = {"evaluate_reward_model": {"max_length": 100_000}}


def test_long_pairs_take_longer(tmp_path: Path) -> None:
    def tokens(chosen: int) -> float:
        loaded = run_on(tmp_path, [pair(100, chosen, 30)] * 150)
        return figure_of(plan_run(loaded), StageName.TRAIN_REWARD_MODEL, "tokens").value or 0

    assert tokens(305) == pytest.approx(tokens(20) * (108 + 307 + 32) / (108 + 22 + 32))


def test_the_filters_own_result_gives_exact_counts_and_its_own_lengths(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    loaded = run_on(tmp_path, [pair(10, 2, 3)] * 150)
    kept, folder = [pair(200, 20, 30)] * 130, tmp_path / "artifact"
    folder.mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(kept), folder / TRAIN_PAIRS_FILE)
    funnel = Funnel(
        sources=("train.jsonl",),
        rows_read=150,
        steps=(),
        train_pairs=130,
        validation_pairs=20,
        policy_train_prompts=15,
        policy_eval_prompts=2,
    )
    (folder / FUNNEL_FILE).write_text(funnel.model_dump_json())
    plan = plan_run(loaded, artifacts={StageName.FILTER_DATASET: folder})
    assert plan.dataset == f"{tmp_path}/train.jsonl: counted as filter_dataset kept them"
    assert figure_text(figure_of(plan, StageName.FILTER_DATASET, "training pairs")) == "130 pairs (exact)"
    assert figure_text(figure_of(plan, StageName.TRAIN_REWARD_MODEL, "steps")) == "17 steps (exact)"
    assert plan.lengths[1].startswith("130 of 130 pairs that filter_dataset kept were looked at;")
    assert plan.lengths[0].startswith("prompts 208 (middle)")


def test_a_result_that_cannot_be_read_leaves_the_plan_as_it_was(tmp_path: Path) -> None:
    loaded = run_on(tmp_path, [pair(10, 2, 3)] * 150)
    (tmp_path / "artifact").mkdir()
    plan = plan_run(loaded, artifacts={StageName.FILTER_DATASET: tmp_path / "artifact"})
    assert figure_text(figure_of(plan, StageName.FILTER_DATASET, "training pairs")) == "at most 120 pairs"
    assert plan.lengths[1].startswith("150 of 150 rows,")


def test_rows_that_the_filter_drops_for_their_characters_are_not_looked_at(tmp_path: Path) -> None:
    pairs = [pair(100, 20, 30)] * 140 + [pair(100, 2000, 30)] * 10
    plan = plan_run(run_on(tmp_path, pairs, filter_dataset={"max_characters": 1000}))
    assert plan.lengths[1].startswith("140 of 150 rows,")


@pytest.mark.stages
def test_the_tokens_of_a_plan_are_those_that_the_stage_computes(tmp_path: Path, project: Path) -> None:

    from containers.algorithms.reward_model import make_packs
    from containers.scoring.scorer import conversation_tokens
    from containers.stages.build_base_model import tokenizer_from_texts

    facts = ["red", "green", "blue"]
    pairs = [
        {
            "prompt": f"Which colour has stone {number}, dear friend?",
            "chosen": facts[number % 3],
            "rejected": "No idea.",
        }
        for number in range(150)
    ]
    loaded = run_on(tmp_path, pairs, tokenizer=False)
    texts = [text for row in pairs for text in row.values()]
    tokenizer = tokenizer_from_texts(texts, vocabulary_size=400, max_length=2048)
    tokenizer.chat_template = (project / "containers/stages/chatml.jinja").read_text()
    tokenizer.save_pretrained(tmp_path / "model")
    planned = figure_of(plan_run(loaded), StageName.TRAIN_REWARD_MODEL, "tokens a step").value or 0

    def conversation(row: dict[str, str], side: str) -> list[int]:
        turns = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row[side]}]
        return conversation_tokens(tokenizer, turns)

    sides = [(conversation(row, "chosen"), conversation(row, "rejected")) for row in pairs]
    computed = sum(pack.input_ids.numel() for pack in make_packs(sides, max_tokens=2048))
    assert planned / 8 == pytest.approx(computed / 150, rel=0.02)
