"""A reward model from elsewhere may be of any family: it is judged as far as it reaches, or refused by its name."""

from pathlib import Path

import pytest
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    BloomForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedModel,
)

from containers.contracts.certificate import Certificate
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.stages import evaluate_reward_model
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import tiny_tokenizer

pytestmark = pytest.mark.stages

TOKENIZER = tiny_tokenizer()
IDS = {"vocab_size": len(TOKENIZER), "num_labels": 1, "pad_token_id": TOKENIZER.pad_token_id}
POSITIONS = 128


def judged(tmp_path: Path, model: PreTrainedModel) -> tuple[Certificate, StageContext]:
    """Its certificate on pairs, of which each third is longer than 128 tokens."""
    model.save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    rows = colour_rows(24, seed=99)
    for row in rows[::3]:
        row["prompt"] = [{"role": "user", "content": "Tell me about it, please. " * 12}]
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(1), rows), "reward_model": tmp_path / "model"}
    config = EvaluateRewardModelConfig(max_length=512, num_bootstrap=100)
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    evaluate_reward_model.run(context)
    return Certificate.model_validate_json((context.output / "certificate.json").read_bytes()), context


def test_pairs_beyond_a_models_positions_are_counted_out_instead_of_crashing_it(tmp_path: Path) -> None:
    config = GPT2Config(**IDS, n_embd=32, n_layer=1, n_head=4, n_positions=POSITIONS, eos_token_id=0, bos_token_id=0)
    found, context = judged(tmp_path, GPT2ForSequenceClassification(config))
    assert (found.suites[0].num_over_long, found.suites[0].num_pairs) == (8, 16)
    assert found.model.max_length == POSITIONS
    assert (
        "has 128 positions, fewer than evaluate_reward_model.max_length (512)"
        in (context.work / "events.jsonl").read_text()
    )


def test_a_model_whose_positions_have_no_end_is_judged_up_to_max_length(tmp_path: Path) -> None:
    config = BloomConfig(**IDS, hidden_size=32, n_layer=1, n_head=4)
    found, _ = judged(tmp_path, BloomForSequenceClassification(config))
    assert (found.suites[0].num_over_long, found.model.max_length) == (0, 512)


def test_a_classifier_without_score_head_is_refused_by_its_name(tmp_path: Path) -> None:
    config = BertConfig(**IDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    with pytest.raises(MissingPrerequisiteError, match=r"is a BertFor.*, which has no `score` head"):
        judged(tmp_path, BertForSequenceClassification(config))
