"""The stage program with completions that are dealt instead of drawn: `python dealt_completions.py SPEC`.

What a completion is depends on the step, its prompt and its place among its siblings, and not on the random numbers of
the rank that has it; so runs on different numbers of ranks learn from the same completions. Nothing else is changed.
"""

import os
import random
import sys
from typing import Any

from torch import distributed

from containers.algorithms.rloo import PolicyTrainer
from containers.stages import entry


def deal(trainer: Any, prompt_ids: list[list[int]], *_: Any) -> list[list[int]]:
    """Completions of three to eight letters that end."""
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    completions = []
    for place, prompt in enumerate(prompt_ids, start=rank * len(prompt_ids)):
        dice = random.Random(f"{trainer.state.global_step} {prompt} {place % trainer.num_generations}")  # noqa: S311
        letters = [dice.randrange(60, 90) for _ in range(dice.randrange(3, 8))]
        completions.append([*letters, trainer.eos_token_ids[0]])
    return completions


def become_torchrun(program: str, command: list[str]) -> None:
    """As the entry program does it, with this program in its place."""
    place = command.index("containers.stages.entry")
    EXEC(program, [*command[: place - 1], __file__, *command[place + 1 :]])


EXEC = os.execv

if __name__ == "__main__":
    os.execv = become_torchrun
    PolicyTrainer._generate_single_turn = deal  # type: ignore[method-assign,assignment]
    sys.exit(entry.main())
