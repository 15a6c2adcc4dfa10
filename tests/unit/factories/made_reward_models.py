"""Reward models made by hand instead of trained, as artifacts of train_reward_model that hold together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ForSequenceClassification

from containers.contracts.names import MERGED_FOLDER, TRAINING_INFO_FILE, StageName
from containers.evals.sample_predictions import sample_predictions, write_sample_predictions
from containers.scoring.scorer import RewardScorer
from tests.unit.factories.report.report_records import training_info
from tests.unit.factories.tiny_policy import tiny_config, tiny_tokenizer

MAX_POSITIONS = 1024


def random_model(*, seed: int = 1) -> Qwen3ForSequenceClassification:
    """Nothing was learnt, neither below nor in the score head."""
    torch.manual_seed(seed)
    config = tiny_config(tiny_tokenizer(), initializer_range=0.3, num_labels=1, max_position_embeddings=MAX_POSITIONS)
    return Qwen3ForSequenceClassification(config).eval()


def token_counter() -> Qwen3ForSequenceClassification:
    """Scores the number of tokens and nothing else: a longer conversation scores higher, whatever it says.

    Its only layer attends to all tokens alike and looks for the sign that begins a turn, of which each conversation
    has two. So it sees 2 / n, and the head turns that round.
    """
    tokenizer = tiny_tokenizer()
    config = tiny_config(tokenizer, num_labels=1, num_hidden_layers=1, max_position_embeddings=MAX_POSITIONS)
    model = Qwen3ForSequenceClassification(config).eval()
    layer, begin = model.model.layers[0], tokenizer.convert_tokens_to_ids("<|im_start|>")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        model.model.embed_tokens.weight[:, 0] = 1.0
        model.model.embed_tokens.weight[begin, 1] = 1.0
        layer.self_attn.v_proj.weight[0, 1] = layer.self_attn.v_proj.weight[8, 1] = 1.0
        layer.self_attn.o_proj.weight[2, :] = 1.0
        model.score.weight[0, 2] = -4.0
    return model


def write_reward_model(folder: Path, model: Qwen3ForSequenceClassification, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The artifact: merged model, the scores that it gives the first rows, and a training record."""
    tokenizer = tiny_tokenizer()
    merged = folder / MERGED_FOLDER
    model.save_pretrained(merged)
    tokenizer.save_pretrained(merged)
    scorer = RewardScorer(model, tokenizer, max_length=MAX_POSITIONS, batch_size=8)
    sides = [scorer.score([row["prompt"] + row["chosen"], row["prompt"] + row["rejected"]]) for row in rows[:32]]
    samples = sample_predictions([dict(row) for row in rows], [(chosen, rejected) for chosen, rejected in sides])
    write_sample_predictions(folder, samples)
    info = training_info(StageName.TRAIN_REWARD_MODEL, steps=26)
    (folder / TRAINING_INFO_FILE).write_text(info.model_dump_json())
    return folder
