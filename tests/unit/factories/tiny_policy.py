"""Tiny Qwen3 models with a byte-level tokenizer in ChatML, made on the spot for the tests of policy stages."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.sample_completions import SampleCompletionsConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.stages import evaluate_policy, sample_completions
from tests.unit.factories.spec_factory import make_context

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(special: Iterable[str] = SPECIAL_TOKENS) -> PreTrainedTokenizerFast:
    """One token per byte, plus ChatML's special tokens; ends with <|im_end|>, pads with <|endoftext|>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    pad_token = "<|endoftext|>" if "<|endoftext|>" in special else None
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token=pad_token, padding_side="left"
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def tiny_config(tokenizer: Any, **overrides: Any) -> Qwen3Config:
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "dtype": "float32",
        **overrides,
    }
    return Qwen3Config(**settings)


def tiny_causal_model(tokenizer: Any, *, seed: int = 0, scale: float = 0.3) -> Qwen3ForCausalLM:
    """Random weights; a larger `scale` makes the distributions less flat."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(tiny_config(tokenizer, initializer_range=scale)).eval()


def save_causal_model(folder: Path, *, seed: int = 0, scale: float = 0.3) -> Path:
    tokenizer = tiny_tokenizer()
    tiny_causal_model(tokenizer, seed=seed, scale=scale).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_reward_model(folder: Path, *, seed: int = 1, scale: float = 0.3) -> Path:
    """A sequence classifier with one output and a random score head, with its tokenizer."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    config = tiny_config(tokenizer, initializer_range=scale, num_labels=1)
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def evaluated_policy(
    folder: Path, config: EvaluatePolicyConfig, inputs: Mapping[str, Path], **overrides: Any
) -> tuple[StageContext, StageContext]:
    """Let policy and reference write, and judge them; the contexts of sample_completions and evaluate_policy.

    Args:
        inputs: `prompts`, `start_model` and `policy`, and what the rewards and judges read.
        overrides: fields of the specs.
    """
    sampling = SampleCompletionsConfig().for_evaluation(config)
    written_from = {name: inputs[name] for name in ("prompts", "start_model", "policy")}
    others = {name: path for name, path in inputs.items() if name not in written_from}
    sampled = make_context(folder, StageName.SAMPLE_COMPLETIONS, sampling, written_from, **overrides)
    sample_completions.run(sampled)
    read = {"completions": sampled.output, **others}
    judged = make_context(folder, StageName.EVALUATE_POLICY, config, read, **overrides)
    evaluate_policy.run(judged)
    return sampled, judged
