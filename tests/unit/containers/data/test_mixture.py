"""A mixture whose shares are not what was asked for makes two runs with the same YAML two different experiments."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.data.splits import mixture_sizes
from tests.unit.factories.filter_factory import BAD, GOOD, Run, assert_every_row_is_counted, helpsteer3, write

NAMES = st.sampled_from(["a", "b", "c"])
NO_POLICY = {"policy_prompt_fraction": 0, "validation_fraction": 0.1}


@given(
    st.dictionaries(NAMES, st.integers(0, 500), min_size=1),
    st.fixed_dictionaries({name: st.floats(0.1, 10) for name in "abc"}),
    st.none() | st.integers(1, 300),
)
def test_no_source_gives_more_than_it_has_and_one_of_them_or_the_limit_is_used_up(
    available: dict[str, int], weights: dict[str, float], most: int | None
) -> None:
    sizes = mixture_sizes(available, weights, most=most)
    assert all(0 <= sizes[name] <= available[name] for name in available)
    assert most is None or sum(sizes.values()) <= most
    used_up = any(sizes[name] >= available[name] - 1 for name in available)
    assert used_up or (most is not None and sum(sizes.values()) > most - len(sizes) - 1)
    whole = sum(weights[name] for name in available)
    total = sum(sizes.values())
    assert all(abs(sizes[name] - total * weights[name] / whole) <= len(sizes) for name in available)


def arena(number: int) -> dict[str, Any]:
    return {"prompt": f"Which soup for {number} friends?", "response_a": BAD, "response_b": GOOD, "winner": "b"}


def inputs(folder: Path, *, num_soups: int = 100, num_friends: int = 100) -> dict[str, Path]:
    return {
        "train_data_soups": write(folder / "soups.jsonl", [helpsteer3(number) for number in range(num_soups)]),
        "train_data_friends": write(folder / "friends.jsonl", [arena(number) for number in range(num_friends)]),
    }


def mixture(soups: float | None, friends: float | None) -> tuple[dict[str, Any], ...]:
    return ({"name": "soups", "weight": soups}, {"name": "friends", "weight": friends})


@pytest.mark.parametrize(
    ("weights", "kept"),
    [
        ((1, 1), {"soups": 100, "friends": 100}),
        ((3, 1), {"soups": 100, "friends": 33}),
        ((0.1, 0.4), {"soups": 25, "friends": 100}),
        ((None, None), {"soups": 100, "friends": 100}),
    ],
)
def test_sources_of_different_schemas_are_mixed_by_weight_and_counted_by_source(
    tmp_path: Path, weights: tuple[float | None, float | None], kept: dict[str, int]
) -> None:
    done = Run(tmp_path, inputs(tmp_path), mixture=mixture(*weights), **NO_POLICY)
    assert_every_row_is_counted(done.funnel)
    assert dict(done.funnel.read_by_source) == {"soups": 100, "friends": 100}
    dropped = Counter[str]()
    for step in done.funnel.steps:
        dropped.update(dict(step.dropped_by_source))
    assert {name: 100 - dropped[name] for name in kept} == kept
    assert sum(count for _, count in done.funnel.train_by_source) == done.funnel.train_pairs


def test_a_limit_on_rows_keeps_the_shares(tmp_path: Path) -> None:
    done = Run(tmp_path, inputs(tmp_path), mixture=mixture(3, 1), max_rows=40, **NO_POLICY)
    rows = done.table("train") + done.table("test")
    assert Counter("friends" in row["prompt"][0]["content"] for row in rows) == {False: 30, True: 10}
    assert done.dropped_by["sampled_away"] == 0


def test_a_source_without_validation_file_holds_prompts_out_and_one_with_a_file_does_not(tmp_path: Path) -> None:
    validation = write(tmp_path / "validation.jsonl", [arena(number) for number in range(500, 510)])
    done = Run(
        tmp_path,
        {**inputs(tmp_path), "validation_data_friends": validation},
        mixture=mixture(None, None),
        validation_fraction=0.2,
        policy_prompt_fraction=0,
    )
    held_out = done.prompts("test")
    assert {f"Which soup for {number} friends?" for number in range(500, 510)} <= held_out
    others = [prompt for prompt in held_out if "guests" in prompt]
    assert len(held_out) == len(others) + 10 and 10 < len(others) < 35
    assert not held_out & done.prompts("train")


def test_a_smaller_percentage_is_a_part_of_a_larger_one(tmp_path: Path) -> None:
    found = {}
    for percentage in (10, 20, 100):
        done = Run(
            tmp_path / str(percentage),
            inputs(tmp_path),
            mixture=mixture(None, None),
            data_percentage=percentage,
            policy_prompt_fraction=0,
        )
        found[percentage] = done.prompts("train") | done.prompts("test")
        assert_every_row_is_counted(done.funnel)
    assert [len(found[percentage]) for percentage in found] == [20, 40, 200]
    assert found[10] < found[20] < found[100]


def test_the_same_seed_mixes_the_same_and_another_seed_otherwise(tmp_path: Path) -> None:
    runs = [
        Run(tmp_path / str(place), inputs(tmp_path), mixture=mixture(1, 4), seed=seed)
        for place, seed in enumerate((7, 7, 8))
    ]
    tables = [run.table("train") for run in runs]
    assert tables[0] == tables[1] != tables[2]
