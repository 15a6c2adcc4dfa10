"""Peculiarities of models on the hub: each here has one that once ended a run, most of them after its training."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from containers.contracts.certificate import Certificate
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import TRAINING_INFO_FILE, StageName
from containers.contracts.records import TrainingInfo
from containers.evals.score_rows import RowToScore
from containers.harness.context import StageContext
from containers.harness.errors import BadDataError, MissingPrerequisiteError
from containers.models.loading import load_new_reward_model, load_tokenizer
from containers.report.training import training_facts
from containers.rewards.reward_model import ModelReward
from containers.scoring.scorer import RewardScorer
from containers.stages import evaluate_reward_model, train_reward_model, train_sft
from containers.stages.score_file import score_rows
from tests.unit.factories.reward_model_factory import (
    logged_scores,
    reward_model_context,
    transformers_scores,
    values_of,
)
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model, tiny_tokenizer

pytestmark = pytest.mark.stages

# google/gemma-3-1b-it: the tokenizer's token 262144, for an embedding with the rows 0 to 262143.
IMAGE_TOKEN = "<image_soft_token>"


def scorer_of(folder: Path) -> RewardScorer:
    return RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=256, batch_size=4)


def save_tokenizer_with(folder: Path, token: str, *, special: bool = True, template: str = "") -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([token], special_tokens=special)
    tokenizer.chat_template += template
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("use_cls", [False, True])
def test_a_reward_model_of_gemma_3_is_saved_though_its_tokenizer_has_a_token_without_a_row(
    tmp_path: Path, use_cls: bool
) -> None:
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=512,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    Gemma3ForCausalLM(config).save_pretrained(tmp_path / "start")
    save_tokenizer_with(tmp_path / "start", IMAGE_TOKEN)
    assert len(load_tokenizer(tmp_path / "start")) == config.vocab_size + 1
    schedule = TrainingSchedule(max_steps=3, eval_steps=3)
    context = reward_model_context(tmp_path, schedule=schedule, use_cls=use_cls)
    assert values_of(train_reward_model.run(context))["reload_max_difference"] <= 1e-4
    conversations, logged = logged_scores(context)
    assert scorer_of(context.output / "merged").score(conversations) == pytest.approx(logged, abs=1e-4)


def test_a_score_token_behind_one_without_a_row_makes_no_random_row(tmp_path: Path) -> None:
    folder = save_causal_model(tmp_path / "start")
    rows = [
        load_new_reward_model(folder, pad_token_id=0, score_token_id=260, seed=seed, dtype=torch.float32, device="cpu")
        .get_input_embeddings()
        .weight.data
        for seed in (1, 2)
    ]
    assert rows[0].shape[0] == 261
    assert torch.equal(rows[0], rows[1])


def test_a_text_that_spells_a_token_without_a_row_has_no_score_and_says_so(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "model")
    save_tokenizer_with(folder, IMAGE_TOKEN)
    scorer = scorer_of(folder)
    plain, spelt = ([{"role": "user", "content": text}] for text in ("Hi", f"Hi {IMAGE_TOKEN}"))
    assert len(scorer.score([plain])) == 1
    with pytest.raises(BadDataError, match=r"Conversation 2 has the token <image_soft_token> .*259 rows"):
        scorer.score([plain, spelt])


def test_a_policy_that_writes_a_token_without_a_row_is_scored_by_its_letters(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "model")
    known = scorer_of(folder)
    asked = [{"role": "user", "content": "Hi"}]
    replies = [[{"role": "assistant", "content": text}] for text in ("Yes.", f"{IMAGE_TOKEN} and {IMAGE_TOKEN}")]
    by_letters = known.score([[*asked, *reply] for reply in replies])  # its tokenizer has no such token
    save_tokenizer_with(folder, IMAGE_TOKEN)
    reward = ModelReward(scorer_of(folder))
    assert reward.scores([[*asked, *reply] for reply in replies]) == by_letters
    assert by_letters[0] != by_letters[1]


def notes_of(context: StageContext) -> str:
    events = [json.loads(line) for line in (context.work / "events.jsonl").read_text().splitlines()]
    return "\n".join(event["text"] for event in events if event["type"] == "note")


def spell_it(rows: list[dict[str, Any]], *places: int) -> list[dict[str, Any]]:
    for place in places:
        rows[place]["chosen"] = [{"role": "assistant", "content": f"The cat is {IMAGE_TOKEN}."}]
    return rows


def test_pairs_that_spell_a_token_without_a_row_are_left_out_of_the_training_and_counted(tmp_path: Path) -> None:
    schedule = TrainingSchedule(max_steps=3, eval_steps=3)
    context = reward_model_context(tmp_path, rows=spell_it(colour_rows(48), 5, 9), schedule=schedule)
    save_tokenizer_with(tmp_path / "start", IMAGE_TOKEN)
    values = values_of(train_reward_model.run(context))
    assert (values["train_pairs_left_out"], values["validation_pairs_left_out"]) == (2, 0)
    info = TrainingInfo.model_validate_json((context.output / TRAINING_INFO_FILE).read_text())
    assert (info.num_examples, info.examples_left_out, info.examples_without_row) == (46, 0, 2)
    assert ("Left out for a token without a row", 2) in training_facts(info)
    assert (
        "2 of 48 training pairs are left out: they spell a token without a row in the model's embedding of 259 rows, "
        "the first <image_soft_token> (id 259)."
    ) in notes_of(context)


def test_completions_that_spell_a_token_without_a_row_are_left_out_of_fine_tuning_and_counted(tmp_path: Path) -> None:
    start = save_causal_model(tmp_path / "start")
    save_tokenizer_with(start, IMAGE_TOKEN)
    inputs = {"pairs": write_pairs(tmp_path / "pairs", spell_it(colour_rows(48), 5)), "start_model": start}
    config = TrainSftConfig(
        max_length=128, schedule=TrainingSchedule(max_steps=2, eval_steps=2), gradient_checkpointing=False
    )
    values = values_of(train_sft.run(make_context(tmp_path, StageName.TRAIN_SFT, config, inputs)))
    assert values["train_completions_left_out"] == 1


def test_texts_of_which_many_spell_a_token_without_a_row_stop_the_training_before_its_first_step(
    tmp_path: Path,
) -> None:
    context = reward_model_context(tmp_path, rows=spell_it(colour_rows(48), 1, 3, 5, 7, 9))
    save_tokenizer_with(tmp_path / "start", IMAGE_TOKEN)
    with pytest.raises(BadDataError, match=r"5 of 48 training pairs spell .*259 rows.* More than 10% is no accident"):
        train_reward_model.run(context)
    assert not list(context.checkpoints.glob("checkpoint-*"))


def test_a_tokenizer_of_another_model_is_refused_before_the_training(tmp_path: Path) -> None:
    context = reward_model_context(tmp_path, rows=colour_rows(48))
    save_tokenizer_with(tmp_path / "start", "<|more|>", special=False)
    with pytest.raises(MissingPrerequisiteError, match="that of another model: it has 260 tokens"):
        train_reward_model.run(context)
    assert not list(context.checkpoints.glob("checkpoint-*"))


def test_a_row_that_spells_a_token_without_a_row_keeps_its_place_with_the_reason(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "model")
    save_tokenizer_with(folder, IMAGE_TOKEN)
    asked = ({"role": "user", "content": "Hi"},)
    texts = ("Yes.", f"No {IMAGE_TOKEN}")
    rows = [RowToScore("", line, prompt=asked, responses=(text,)) for line, text in enumerate(texts, start=1)]
    first, second = score_rows(rows, scorer_of(folder))
    assert len(first.scores) == 1
    assert (second.reason, second.seen) == ("token_without_row", f"{IMAGE_TOKEN} (id 259)")


def test_an_item_that_spells_a_token_without_a_row_is_left_out_of_the_certificate_and_counted(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "model")
    save_tokenizer_with(folder, IMAGE_TOKEN)
    rows = colour_rows(4)
    rows[0]["rejected"] = [{"role": "assistant", "content": f"See {IMAGE_TOKEN}."}]
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(1), rows), "reward_model": folder}
    config = EvaluateRewardModelConfig(max_length=256, num_bootstrap=100)
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    evaluate_reward_model.run(context)
    found = Certificate.model_validate_json((context.output / "certificate.json").read_bytes())
    assert (found.suites[0].num_pairs, found.suites[0].left_out_because) == (3, (("token_without_row", 1),))


@pytest.mark.parametrize(
    ("special", "template"), [(False, ""), (True, "<|more|>"), (True, "{% if messages[1:] %}<|more|>{% endif %}")]
)
def test_a_token_without_a_row_that_texts_or_the_template_hold_is_refused(
    tmp_path: Path, special: bool, template: str
) -> None:
    folder = save_reward_model(tmp_path / "model")
    save_tokenizer_with(folder, "<|more|>", special=special, template=template)
    with pytest.raises(MissingPrerequisiteError, match="that of another model: it has 260 tokens"):
        scorer_of(folder)


def test_an_end_token_without_a_row_is_refused(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "model")
    save_tokenizer_with(folder, "<|more|>")
    settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<|more|>"}))
    with pytest.raises(MissingPrerequisiteError, match="that of another model"):
        scorer_of(folder)


def conversations() -> list[list[dict[str, str]]]:
    return [[*row["prompt"], *row["chosen"]] for row in colour_rows(6)]


def save_stranger(
    folder: Path, *, pad_token_id: int | None, special: Iterable[str], pad_token: str | None = None
) -> Path:
    """A reward model whose conversations end with its end of sequence, and whose config says this of padding."""
    save_reward_model(folder)
    tokenizer = tiny_tokenizer(special)
    config = json.loads((folder / "config.json").read_text())
    ids = {"pad_token_id": pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    (folder / "config.json").write_text(json.dumps({**config, **ids}))
    tokenizer.pad_token = pad_token
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>\n", "<|im_end|>")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("pad_token_id", [None, -1])
@pytest.mark.parametrize("special", [("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<|im_start|>", "<|im_end|>")])
@pytest.mark.parametrize("pad_token", [None, "<|im_end|>", "<|im_start|>"])
def test_a_reward_model_that_names_no_pad_token_scores_batches_as_transformers_scores_one(
    tmp_path: Path, pad_token_id: int | None, special: tuple[str, ...], pad_token: str | None
) -> None:
    folder = save_stranger(tmp_path / "model", pad_token_id=pad_token_id, special=special, pad_token=pad_token)
    wanted = transformers_scores(folder, conversations())
    scorer = scorer_of(folder)
    assert scorer.score(conversations()) == pytest.approx(wanted, abs=1e-4)
    scorer.padded_since = "of this test"
    assert scorer.score(conversations()) == pytest.approx(wanted, abs=1e-4)


def test_a_reward_model_that_names_no_pad_token_gets_its_certificate(tmp_path: Path) -> None:
    folder = save_stranger(tmp_path / "model", pad_token_id=None, special=("<|im_start|>", "<|im_end|>"))
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(1)), "reward_model": folder}
    config = EvaluateRewardModelConfig(max_length=256, num_bootstrap=100)
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    evaluate_reward_model.run(context)
    found = Certificate.model_validate_json((context.output / "certificate.json").read_bytes())
    assert found.parity.max_difference <= 1e-4


def test_a_reward_model_without_any_token_to_pad_with_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    folder = save_stranger(tmp_path / "model", pad_token_id=None, special=("<|im_end|>",))
    with pytest.raises(
        MissingPrerequisiteError, match=r"names no pad_token_id.*every conversation ends with <\|im_end"
    ):
        scorer_of(folder)
