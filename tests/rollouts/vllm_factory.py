"""What vLLM is tried on: a configuration, and a model that its kernels for a CPU take."""

import os
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from tests.unit.factories.tiny_policy import tiny_tokenizer

NEW_TOKENS = 10
CONFIG = TrainPolicyConfig(
    num_generations=4,
    max_prompt_length=100,
    max_completion_length=NEW_TOKENS,
    lora=LoraSettings(r=4, alpha=8),
    rollout_engine="vllm",
    optimizer=OptimizerSettings(learning_rate=5e-3, scheduler="constant"),
    schedule=TrainingSchedule(max_steps=4, save_steps=2),
)


def save_start_model(folder: Path) -> Path:
    """A tiny Qwen3 with heads as wide as vLLM's kernels for a CPU want them."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(2)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split())


def demand_no_more_children(before: set[str]) -> None:
    """Within half a minute, no process is left that was not there before."""
    ends_by = time.monotonic() + 30
    while left := children() - before - _helpers():
        assert time.monotonic() < ends_by, [Path(f"/proc/{child}/cmdline").read_bytes() for child in left]
        time.sleep(0.2)


def _helpers() -> set[str]:
    """Multiprocessing's own, vLLM's guard, which ends with the `vllm.LLM`, and what has ended and is not fetched."""
    found = set()
    for child in children():
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except FileNotFoundError:
            continue
        if not command or b"resource_tracker" in command or b"pidfd_open" in command:
            found.add(child)
    return found
