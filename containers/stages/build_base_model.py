"""A small Qwen3 with random weights and its tokenizer: what a run without a model hub starts from."""

import math
from importlib import resources
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM, set_seed

from containers.contracts.configs.build_base_model import BuildBaseModelConfig
from containers.contracts.names import MODEL_FOLDER, TRAIN_PAIRS_FILE
from containers.contracts.outcome import Metric
from containers.data.pairs import read_pair_rows
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.models.loading import parameter_counts
from containers.models.tokenizer_building import (
    END_OF_TEXT,
    TURN_END,
    check_round_trip,
    tokenizer_from_ranks,
    tokenizer_from_texts,
)

_CHECKED_TEXTS = 500


def run(context: StageContext) -> tuple[Metric, ...]:
    """Write `model/`: config, safetensors, tokenizer, chat template; returns sizes and bytes per token."""
    config = context.spec.config
    if not isinstance(config, BuildBaseModelConfig):
        raise BadConfigError(f"build_base_model was given the config of {config.stage}.")
    texts = _texts(context.input_path("pairs"))
    tokenizer = _build_tokenizer(context, config, texts)
    tokenizer.chat_template = default_chat_template()
    model = _build_model(config, tokenizer, seed=context.spec.seed)
    folder = context.output / MODEL_FOLDER
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return (
        Metric(name="total_parameters", value=parameter_counts(model)[1], unit="parameters"),
        Metric(name="vocabulary_size", value=len(tokenizer), unit="tokens"),
        _bytes_per_token(tokenizer, texts),
    )


def default_chat_template() -> str:
    """ChatML: `<|im_start|>role`, the text, `<|im_end|>`; as Qwen models are trained with."""
    return resources.files("containers.stages").joinpath("chatml.jinja").read_text(encoding="utf-8")


def _texts(pairs: Path) -> list[str]:
    """Every text of the training pairs, in order. Validation texts stay unseen."""
    texts = []
    for row in read_pair_rows(pairs, TRAIN_PAIRS_FILE):
        texts += [message["content"] for message in (*row["prompt"], *row["chosen"], *row["rejected"])]
    return texts


def _build_tokenizer(context: StageContext, config: BuildBaseModelConfig, texts: list[str]) -> PreTrainedTokenizerBase:
    """From the rank file where there is one, otherwise trained on the texts."""
    length = config.max_position_embeddings
    sample = texts[:: max(1, len(texts) // _CHECKED_TEXTS)]
    if context.has_input("tokenizer_file"):
        if config.vocabulary_size is not None:
            context.recorder.note("The vocabulary is that of tokenizer_file; vocabulary_size is not used.")
        return tokenizer_from_ranks(context.input_path("tokenizer_file"), max_length=length, sample=sample)
    if config.vocabulary_size is None:
        raise BadConfigError(
            "build_base_model.vocabulary_size is null and there is no tokenizer_file: give one of the two."
        )
    tokenizer = tokenizer_from_texts(texts, vocabulary_size=config.vocabulary_size, max_length=length)
    if len(tokenizer) < config.vocabulary_size:
        context.recorder.note(
            f"The texts hold only {len(tokenizer)} different tokens; vocabulary_size asks for {config.vocabulary_size}."
        )
    check_round_trip(tokenizer, sample)
    return tokenizer


def _build_model(config: BuildBaseModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Qwen3ForCausalLM:
    """Random weights from `seed`; input and output embeddings are shared, as in the small Qwen3 models."""
    set_seed(seed)
    end_of_text = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    turn_end = tokenizer.convert_tokens_to_ids(TURN_END)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=turn_end,
            pad_token_id=end_of_text,
            dtype=torch.float32,
            # Keeps activations and logits near one at any width. Qwen3's own 0.02 does that at 2,500 dimensions; a
            # model of 128 would start with signals a quarter as large.
            initializer_range=config.hidden_size**-0.5,
        )
    )
    model.generation_config = GenerationConfig(
        do_sample=True, bos_token_id=None, eos_token_id=[turn_end, end_of_text], pad_token_id=end_of_text
    )
    return model


def _bytes_per_token(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Metric:
    sample = texts[:: max(1, len(texts) // _CHECKED_TEXTS)]
    num_tokens = sum(len(tokenizer(text)["input_ids"]) for text in sample)
    num_bytes = sum(len(text.encode()) for text in sample)
    ratio = num_bytes / num_tokens if num_tokens else math.nan
    return Metric(name="bytes_per_token", value=ratio, unit="bytes", count=len(sample))
