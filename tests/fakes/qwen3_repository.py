"""A model repository as Qwen/Qwen3-8B's: the same files, settings and chat template around a model of a few layers.

What is copied from the published repository: the keys of config.json as transformers 4.51 wrote them, untied embeddings
with more rows than the tokenizer has tokens, weights in bfloat16 cut into shards with an index, a tokenizer of class
Qwen2Tokenizer whose chat template stands in tokenizer_config.json and knows a thinking mode, and a generation_config
that samples otherwise than training may.
"""

import json
from importlib import resources

import torch
from safetensors.torch import save
from tokenizers import AddedToken, Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed

from containers.stages.build_base_model import tokenizer_from_texts

# After end of text, turn start and turn end, in Qwen3's order; those of a tool call or a thought are ordinary text.
_FURTHER_SPECIAL_TOKENS = (
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
_FURTHER_TOKENS = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
_TRAINED_VOCABULARY = 700
_VOCABULARY_MULTIPLE = 128
_MAX_POSITIONS = 40960
_NUM_SHARDS = 2


def qwen3_repository(*, texts: list[str], seed: int = 0) -> dict[str, bytes]:
    """Every file of the repository by its path; weights are random, and the vocabulary is trained on `texts`.

    Qwen's own 152k words would make a step of policy training take half a minute on a busy core.
    """
    made = tokenizer_from_texts(texts, vocabulary_size=_TRAINED_VOCABULARY, max_length=_MAX_POSITIONS)
    tokenizer: Tokenizer = made.backend_tokenizer
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in _FURTHER_SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in _FURTHER_TOKENS])
    config = _config(tokenizer)
    return {
        "config.json": _text(config),
        "generation_config.json": _text(_generation_config(tokenizer)),
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": _text(_tokenizer_config(tokenizer)),
        **_weights(config, seed=seed),
        "README.md": b"# Qwen3\n",
        "LICENSE": b"Apache License 2.0\n",
    }


def _config(tokenizer: Tokenizer) -> dict[str, object]:
    """The published config.json but for the sizes."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 192,
        "max_position_embeddings": _MAX_POSITIONS,
        "max_window_layers": 2,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": -(-tokenizer.get_vocab_size() // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE,
    }


def _generation_config(tokenizer: Tokenizer) -> dict[str, object]:
    end_of_text, turn_end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    return {
        "bos_token_id": end_of_text,
        "do_sample": True,
        "eos_token_id": [turn_end, end_of_text],
        "pad_token_id": end_of_text,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "transformers_version": "4.51.0",
    }


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, object]:
    special = ("<|im_start|>", "<|im_end|>", *_FURTHER_SPECIAL_TOKENS)
    added = {
        str(number): {
            "content": token.content,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token.special,
        }
        for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(special),
        "bos_token": None,
        "chat_template": resources.files("trl").joinpath("chat_templates/qwen3.jinja").read_text(encoding="utf-8"),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _weights(config: dict[str, object], *, seed: int) -> dict[str, bytes]:
    """Random weights in bfloat16, in shards with their index."""
    set_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**config)).to(torch.bfloat16)
    names = sorted(model.state_dict())
    files: dict[str, bytes] = {}
    weight_map: dict[str, str] = {}
    for number in range(_NUM_SHARDS):
        file = f"model-{number + 1:05}-of-{_NUM_SHARDS:05}.safetensors"
        shard = {name: model.state_dict()[name].contiguous() for name in names[number::_NUM_SHARDS]}
        files[file] = save(shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    size = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    return {**files, "model.safetensors.index.json": _text(index)}


def _text(value: dict[str, object]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()
