"""Ways of an on-policy step to compare, TRL's and ours, and the tokens that each computes for the same completions."""

import random
from typing import Any

DEFAULT, OURS = "TRL, its defaults", "ours"
# The same step by PPO, with a critic on the policy's own weights.
PPO = "ours, PPO"
# Completions of a prompt, unless others are given, and prompts of a step.
COMPLETIONS, STEP_PROMPTS = 4, 2
PROMPT_TOKENS, ANSWER_TOKENS = (200, 2000), (100, 600)
LENGTHS = "prompts 200 to 2,000 tokens, completions 100 to 600"
Lengths = list[tuple[int, list[int]]]


def _setting(size: int, *, prompts: int) -> str:
    few = f"{size} completion{'' if size == 1 else 's'}"
    return f"TRL, {few} a batch, {prompts} prompt{'' if prompts == 1 else 's'} a generation"


def settings(completions: int = COMPLETIONS) -> dict[str, dict[str, Any]]:
    """Return TRL's settings without checkpointing that make the same step of so many completions a prompt.

    TRL pads what is generated together to its longest prompt and its longest completion, in every pass. With the
    completions of one prompt alone (`steps_per_generation`) there is no padding of prompts; advantages compare the
    completions of one prompt, and weights change after the whole step, so gradients are the same.
    """
    step = completions * STEP_PROMPTS
    return {
        _setting(size, prompts=prompts): {
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": step // size,
            "steps_per_generation": prompts * completions // size,
            "gradient_checkpointing": False,
        }
        for prompts in (1, STEP_PROMPTS)
        for size in dict.fromkeys((1, 2, 4, completions, step))
        if completions % min(size, completions) == 0
        and size <= prompts * completions
        and not (prompts > 1 and 1 < size < step)
    }


def every_way(completions: int = COMPLETIONS) -> dict[str, dict[str, Any]]:
    """Return every way with what it changes in TRL's arguments."""
    whole_step = {
        "per_device_train_batch_size": completions * STEP_PROMPTS,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": True,
    }
    return {DEFAULT: whole_step, **settings(completions), OURS: {}}


def whole_prompts() -> list[str]:
    """Return the names of TRL's settings with the completions of all prompts of a step in a batch, and of one."""
    return [_setting(COMPLETIONS * prompts, prompts=prompts) for prompts in (STEP_PROMPTS, 1)]


def drawn_lengths(count: int, *, seed: int, completions: int = COMPLETIONS) -> Lengths:
    """Return the tokens of so many prompts, 200 to 2,000, and of their completions, 100 to 600."""
    rng = random.Random(seed)  # noqa: S311 - lengths, not secrets

    def answers() -> list[int]:
        return [rng.randint(*ANSWER_TOKENS) for _ in range(completions)]

    return [(rng.randint(*PROMPT_TOKENS), answers()) for _ in range(count)]


def padding(lengths: Lengths, way: str) -> float:
    """Return the tokens of a way's pass over prompts and completions, over those with each prompt once.

    Example: prompts of 10 and 20 tokens, all completions of 5: both together are 8 rows of 25, so 200 of 70; one prompt
    a generation 4 of 15 and 4 of 25, so 160 of 70.
    """
    completions = len(lengths[0][1])
    given = every_way(completions)[way]
    at_once = given.get("steps_per_generation", 1) * given["per_device_train_batch_size"] // completions
    together = [lengths[start : start + at_once] for start in range(0, len(lengths), at_once)]
    padded = sum(
        completions * len(group) * (max(prompt for prompt, _ in group) + max(max(answers) for _, answers in group))
        for group in together
    )
    return padded / sum(prompt + sum(answers) for prompt, answers in lengths)
