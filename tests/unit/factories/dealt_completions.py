"""The stage program with completions that are dealt instead of drawn: `python dealt_completions.py SPEC`.

What a completion is depends on the step, its prompt and its place among its siblings, and not on the random numbers of
the rank that has it; so runs on different numbers of ranks learn from the same completions. Nothing else is changed.
"""

import itertools
import os
import random
import sys
from collections.abc import Sequence
from typing import Any

from containers.algorithms.policy_rollouts import PolicyRollouts
from containers.rollouts.generate import Completion
from containers.stages import entry

STEPS = itertools.count()


def deal(rollouts: PolicyRollouts, policy: Any, places: Sequence[int]) -> list[Completion]:
    """Completions of three to eight letters that end."""
    step, siblings = next(STEPS), rollouts.config.num_generations
    completions = []
    for row, place in enumerate(places, start=rollouts.rank * rollouts.rows_per_rank):
        prompt = rollouts.prompts[place].token_ids
        dice = random.Random(f"{step} {prompt} {row % siblings}")  # noqa: S311
        letters = [dice.randrange(60, 90) for _ in range(dice.randrange(3, 8))]
        ids = (*letters, rollouts.tokenizer.eos_token_id)
        completions.append(Completion(prompt, ids, text=rollouts.tokenizer.decode(letters), ended=True))
    return completions


def become_torchrun(program: str, command: list[str]) -> None:
    """As the entry program does it, with this program in its place."""
    place = command.index("containers.stages.entry")
    EXEC(program, [*command[: place - 1], __file__, *command[place + 1 :]])


EXEC = os.execv

if __name__ == "__main__":
    os.execv = become_torchrun
    PolicyRollouts.written = deal  # type: ignore[method-assign]
    sys.exit(entry.main())
