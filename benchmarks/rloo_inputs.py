"""Inputs of the RLOO benchmarks: models, prompts, given completions, and a trainer of each way."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Qwen3ForCausalLM,
)
from trl import RLOOConfig, RLOOTrainer

from benchmarks.speed_inputs import random_pairs, real_pairs, save_reward_model
from containers.algorithms.rloo_packed import PackedPolicyTrainer
from containers.contracts.configs.training import LoraSettings
from containers.models.loading import peft_config
from containers.rewards.base import PolicyReward
from containers.rewards.reward_model import ModelReward, policy_scorer
from containers.rollouts.shared_prompts import sharing

DEFAULT, TUNED, OURS = "TRL, its defaults", "TRL, tuned", "ours"
K = 4
STEP_PROMPTS = 2
STEP = K * STEP_PROMPTS
_PROMPT_TOKENS, _ANSWER_TOKENS = (200, 2000), (100, 600)
LENGTHS = "prompts 200 to 2,000 tokens, completions 100 to 600"
ADAPTERS = LoraSettings(r=16, alpha=32)
# The largest prompt with its completions is one pack, as train_policy plans it on a CPU.
_PACK_TOKENS = _PROMPT_TOKENS[1] + K * _ANSWER_TOKENS[1]
ROWS: dict[str, dict[str, Any]] = {
    DEFAULT: {"per_device_train_batch_size": STEP, "gradient_accumulation_steps": 1, "gradient_checkpointing": True},
    TUNED: {"per_device_train_batch_size": 1, "gradient_accumulation_steps": STEP, "gradient_checkpointing": False},
    OURS: {"per_device_train_batch_size": STEP, "gradient_accumulation_steps": 1, "gradient_checkpointing": False},
}
Task = tuple[str, list[str]]


def prepare(folder: Path, *, data: Path | None, count: int) -> list[tuple[int, list[int]]]:
    """Write models, prompts and completions to disk; return the tokens of each prompt and completion."""
    pairs = real_pairs(data, 2000) if data else random_pairs(50)
    save_reward_model(folder / "reward", pairs, data=data)
    tokenizer = AutoTokenizer.from_pretrained(folder / "reward")
    torch.manual_seed(1)
    Qwen3ForCausalLM(AutoConfig.from_pretrained(folder / "reward")).save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    text = "\n".join(message["content"] for pair in pairs for side in pair for message in side)
    tasks = _tasks(tokenizer, text, count=count)
    (folder / "tasks.json").write_text(json.dumps(tasks))
    return [
        (_length(tokenizer, prompt), [_length(tokenizer, answer) for answer in answers]) for prompt, answers in tasks
    ]


def load(folder: Path) -> tuple[list[Task], PreTrainedTokenizerBase, Any, Any]:
    """Read what `prepare` wrote: prompts with completions, tokenizer, policy, and reward model."""
    tasks: list[Task] = json.loads((folder / "tasks.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
    policy = AutoModelForCausalLM.from_pretrained(folder / "policy")
    judge = AutoModelForSequenceClassification.from_pretrained(folder / "reward").eval()
    policy(input_ids=torch.tensor([[5] * 64]))  # warm up threads and allocator
    return tasks, tokenizer, policy, judge


def _tasks(tokenizer: PreTrainedTokenizerBase, text: str, *, count: int) -> list[Task]:
    """Cut prompts of 200 to 2,000 tokens with four completions of 100 to 600 from a text, one after the other."""
    rng = random.Random(0)  # noqa: S311 - lengths, not secrets
    needed = count * (_PROMPT_TOKENS[1] + K * _ANSWER_TOKENS[1])
    ids = iter(tokenizer(text[: 8 * needed], add_special_tokens=False).input_ids)

    def cut(lengths: tuple[int, int], ids: Iterator[int]) -> str:
        return str(tokenizer.decode([next(ids) for _ in range(rng.randint(*lengths))]))

    return [(cut(_PROMPT_TOKENS, ids), [cut(_ANSWER_TOKENS, ids) for _ in range(K)]) for _ in range(count)]


def _length(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False).input_ids)


def deal(trainer: Any, tokenizer: PreTrainedTokenizerBase, tasks: list[Task]) -> None:
    """Give the trainer these completions instead of sampled ones; every second one ends, the others are cut off."""

    def ids_of(text: str, place: int) -> list[int]:
        return [*tokenizer(text, add_special_tokens=False).input_ids, *[tokenizer.eos_token_id] * (place % 2)]

    prompts = trainer._tokenize_prompts([_conversation(prompt) for prompt, _ in tasks])[0]
    known = {
        tuple(prompt): [ids_of(text, place) for place, text in enumerate(answers)]
        for prompt, (_, answers) in zip(prompts, tasks, strict=True)
    }

    def dealt(prompt_ids: list[list[int]], *_: Any) -> list[list[int]]:
        return [known[tuple(ids)][place % K] for place, ids in enumerate(prompt_ids)]

    trainer._generate_single_turn = dealt


def make_trainer(
    way: str, policy: Any, judge: Any, tokenizer: Any, tasks: list[Task], folder: Path, *, whole: bool, **changes: Any
) -> RLOOTrainer:
    """Return the trainer of that way on the prompts of these tasks.

    Args:
        whole: train all weights instead of adapters.
        **changes: settings of RLOOConfig.
    """
    arguments = RLOOConfig(
        output_dir=str(folder / "out"),
        num_generations=K,
        max_steps=len(tasks) // STEP_PROMPTS,
        learning_rate=1e-5,
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **{"max_completion_length": _ANSWER_TOKENS[1], **ROWS[way], **changes},
    )
    shared: dict[str, Any] = {
        "model": policy,
        "args": arguments,
        "train_dataset": Dataset.from_list([{"prompt": _conversation(prompt)} for prompt, _ in tasks]),
        "processing_class": tokenizer,
        "peft_config": None if whole else peft_config(ADAPTERS, task_type="CAUSAL_LM"),
    }
    if way != OURS:
        return RLOOTrainer(reward_funcs=judge, reward_processing_classes=tokenizer, **shared)
    scorer = policy_scorer(judge, tokenizer, batch_size=STEP)
    # A scorer scores its first conversations both ways, once in a training; here before the timing.
    scorer.score([[*_conversation("Hi"), {"role": "assistant", "content": "Hi"}]])
    reward = PolicyReward(ModelReward(scorer), end_ids=[tokenizer.eos_token_id], missing_eos_penalty=0.0)
    return PackedPolicyTrainer(
        reward_funcs=reward,
        pack_tokens=_PACK_TOKENS,
        completion_log=None,
        num_logged_completions=0,
        writing=sharing,
        **shared,
    )


def _conversation(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]
