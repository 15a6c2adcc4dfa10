"""The split of each prompt, by a seeded hash; and the number of pairs that each source of a mixture gives.

A prompt's split does not depend on order or on the other prompts: a prompt that validates one run does not train the
next run with more data. Only similar prompts go together, by the hash of their group.
"""

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from containers.contracts.configs.filter_dataset import ValidationParts
from containers.data.filters.similar_prompts import PromptGroups
from containers.data.pairs import Row
from containers.data.rows import prompt_identity
from containers.data.sources import Placed, Source


@dataclass(frozen=True)
class Parts:
    """Ids of held-out prompts by purpose. Parts are disjoint, or the same set where there are too few prompts."""

    tune: frozenset[str]
    test: frozenset[str]
    frozen: frozenset[str]


@dataclass(frozen=True)
class PolicyPrompts:
    """Prompt ids for the policy; those to train are disjoint from the others."""

    train: frozenset[str]
    evaluation: frozenset[str]
    frozen: frozenset[str]


def share_of(ids: Collection[str], *, fraction: float, seed: int, purpose: str) -> frozenset[str]:
    """Return about `fraction` of `ids`; at least one if there are two or more and the fraction is above zero.

    Args:
        purpose: makes the choices for different purposes independent of one another.

    Example: with 0.05, each id has a chance of 5 %; 1000 ids give about 50.
    """
    if fraction <= 0:
        return frozenset()
    drawn = {item: _uniform(item, seed=seed, purpose=purpose) for item in ids}
    chosen = frozenset(item for item, number in drawn.items() if number < fraction)
    if chosen or len(drawn) < 2:
        return chosen
    return frozenset((min(drawn, key=lambda item: (drawn[item], item)),))


def held_out_groups(
    rows: Sequence[Placed],
    *,
    fraction: float,
    seed: int,
    purpose: str,
    sources: Sequence[Source[Any]],
    groups: PromptGroups,
) -> frozenset[str]:
    """Prompt ids that are held out: those of validation files, and a share of those of sources without one.

    Args:
        rows: those that passed every filter.
        fraction, purpose: as in `share_of`.
        groups: of prompts that stay together.
    """
    has_file = {source.name for source in sources if source.split == "validation"}
    group_of = {item.row.prompt_id: groups.of(item.row.prompt_id) for item in rows}
    held_out = {group_of[item.row.prompt_id] for item in rows if item.split == "validation"}
    held_out |= share_of(
        {group_of[item.row.prompt_id] for item in rows if item.source not in has_file},
        fraction=fraction,
        seed=seed,
        purpose=purpose,
    )
    return frozenset(prompt_id for prompt_id, group in group_of.items() if group in held_out)


def sample_of(ids: Collection[str], *, size: int, seed: int, purpose: str) -> frozenset[str]:
    """Exactly `size` of `ids`, or all where there are fewer."""
    ranked = sorted(set(ids), key=lambda item: (_uniform(item, seed=seed, purpose=purpose), item))
    return frozenset(ranked[:size])


def rows_of_some_prompts(rows: Sequence[Row], *, most: int | None, seed: int, purpose: str) -> Sequence[Row]:
    """Return `most` rows, in their order, of prompts drawn by a seeded hash; all rows where there are no more.

    Rows of a prompt are drawn together, but for the last prompt, of which only some may be left to take.
    """
    if most is None or len(rows) <= most:
        return rows
    ranks = [
        (_uniform(prompt, seed=seed, purpose=purpose), prompt, place)
        for place, prompt in enumerate(prompt_identity(row["prompt"]) for row in rows)
    ]
    return [rows[place] for place in sorted(place for *_, place in sorted(ranks)[:most])]


def divide_held_out(ids: Collection[str], parts: ValidationParts, *, seed: int, groups: PromptGroups) -> Parts:
    """Divide held-out prompts by purpose; a group of prompts stays together.

    A part with fewer than `parts.minimum_prompts` prompts is not split off: it is the test part.
    """
    shares = {"tune": parts.tune, "test": parts.test, "frozen": parts.frozen}
    found: dict[str, set[str]] = {purpose: set() for purpose in shares}
    ends = list(_ends(shares))
    for prompt_id in ids:
        number = _uniform(groups.of(prompt_id), seed=seed, purpose="validation part")
        found[next((purpose for purpose, end in ends if number < end), "frozen")].add(prompt_id)
    small = [purpose for purpose in shares if len(found[purpose]) < parts.minimum_prompts]
    together = set(shares) if "test" in small else {"test", *small}
    test = frozenset[str]().union(*(found[purpose] for purpose in together))
    divided = {purpose: test if purpose in together else frozenset(found[purpose]) for purpose in shares}
    return Parts(**divided)


def _ends(shares: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the upper end of each part of [0, 1)."""
    end, whole = 0.0, sum(shares.values())
    for purpose, share in shares.items():
        end += share / whole
        yield purpose, end


def split_policy_prompts(
    *,
    train_ids: Collection[str],
    validation: Parts,
    fraction: float,
    eval_fraction: float,
    parts: ValidationParts,
    seed: int,
    groups: PromptGroups,
) -> PolicyPrompts:
    """Prompts to train the policy, to evaluate it, and to compare champions; a group of prompts stays together.

    They are taken from the training prompts. With `fraction` 0 none are: the policy trains on the prompts that train
    the reward model, and is evaluated on those that certify it.
    """
    if fraction <= 0:
        return PolicyPrompts(train=frozenset(train_ids), evaluation=validation.test, frozen=validation.frozen)
    names = {prompt_id: groups.of(prompt_id) for prompt_id in train_ids}
    aside = share_of(set(names.values()), fraction=fraction, seed=seed, purpose="policy")
    evaluation = share_of(aside, fraction=eval_fraction, seed=seed, purpose="policy evaluation")
    held_out = [prompt_id for prompt_id, name in names.items() if name in evaluation]
    # Nothing is chosen on the policy's prompts.
    divided = divide_held_out(held_out, parts.model_copy(update={"tune": 0.0}), seed=seed, groups=groups)
    return PolicyPrompts(
        train=frozenset(prompt_id for prompt_id, name in names.items() if name in aside - evaluation),
        evaluation=divided.test,
        frozen=divided.frozen,
    )


def _uniform(item: str, *, seed: int, purpose: str) -> float:
    """A number in [0, 1) that depends on its arguments alone."""
    digest = hashlib.sha256(f"{seed}\0{purpose}\0{item}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def mixture_sizes(available: Mapping[str, int], weights: Mapping[str, float], *, most: int | None) -> dict[str, int]:
    """The largest mixture of these shares that the sources can give.

    Args:
        available: pairs of each source.
        weights: of each source; only their ratios count.
        most: pairs of all sources together; None: no limit.

    Returns:
        Pairs to take of each source, rounded down.

    Example: 100 pairs of `a` and 30 of `b` at weights 1 and 1 give 30 and 30; at 4 and 1 they give 100 and 25.
    """
    whole = sum(weights[name] for name in available)
    shares = {name: weights[name] / whole for name in available}
    total = min((count / shares[name] for name, count in available.items()), default=0.0)
    if most is not None:
        total = min(total, most)
    # 0.1 + 0.2 is not quite 0.3 in binary, and rounding down would lose a pair.
    return {name: math.floor(shares[name] * total + 1e-6) for name in available}
