"""Figures of a set, held against a computation by hand on the same items."""

import statistics

import pytest

from containers.evals.sets.figures import (
    ItemValues,
    model_differences,
    model_scores,
    set_parts,
    told,
    untold_reasons,
)
from containers.evals.sets.records import SetModel

MODELS: tuple[SetModel, ...] = ("before", "start", "policy")
SHARES = {"before": [0, 0, 1, 0, 1, 0, 0, 1], "start": [1, 0, 1, 0, 1, 1, 0, 1], "policy": [1, 1, 0, 0, 1, 1, 1, 1]}


def items(copies: int = 1) -> list[ItemValues]:
    return [
        ItemValues(
            item_id=f"{place}",
            prompt_id=f"{place // copies}",
            subset="odd" if place % 2 else "even",
            values={model: (float(SHARES[model][place]),) for model in MODELS},
            ended=dict.fromkeys(MODELS, (place != 3,)),
        )
        for place in range(8)
    ]


def test_a_models_score_is_its_share_of_right_answers() -> None:
    found = model_scores(items(), MODELS, name="set", confidence=0.95)
    assert [one.model for one in found] == list(MODELS)
    assert [one.score.value for one in found] == [3 / 8, 5 / 8, 6 / 8]
    assert all(one.score.ci_low < one.score.value < one.score.ci_high for one in found if one.score.ci_low is not None)
    assert {one.ended.value for one in found} == {7 / 8}
    assert found[0].score.name == "set_before"


def test_differences_are_paired_item_by_item() -> None:
    found = {(one.second, one.first): one for one in model_differences(items(), MODELS, name="set", confidence=0.95)}
    assert list(found) == [("start", "before"), ("policy", "before"), ("policy", "start")]
    own = found["policy", "start"]
    differences = [policy - start for policy, start in zip(SHARES["policy"], SHARES["start"], strict=True)]
    assert own.difference.value == statistics.fmean(differences) == 1 / 8
    assert (own.num_better, own.num_worse) == (2, 1)
    # Student's t for 7 degrees of freedom at 95 %.
    half = 2.364624 * statistics.stdev(differences) / 8**0.5
    assert own.difference.ci_high == pytest.approx(1 / 8 + half, rel=0.2)
    assert own.detectable > own.difference.value


def test_items_of_one_prompt_are_one_observation() -> None:
    (alone,) = model_differences(items(), ("start", "policy"), name="s", confidence=0.95)
    (pairs,) = model_differences(items(2), ("start", "policy"), name="s", confidence=0.95)
    assert alone.difference.value == pairs.difference.value
    assert (alone.difference.num_prompts, pairs.difference.num_prompts) == (8, 4)


def test_parts_have_the_largest_first_and_one_part_is_none() -> None:
    parts = set_parts(items(), MODELS)
    assert [(part.name, part.num_items) for part in parts] == [("even", 4), ("odd", 4)]
    assert parts[0].scores == (2 / 4, 3 / 4, 3 / 4)
    assert set_parts(items()[::2], MODELS) == ()


def test_what_the_rule_cannot_tell_counts_for_no_model() -> None:
    some = items()
    some[0] = ItemValues("0", "0", "", dict.fromkeys(MODELS, ()), dict.fromkeys(MODELS, ()), "too long")
    assert [item.item_id for item in told(some)] == ["1", "2", "3", "4", "5", "6", "7"]
    assert untold_reasons(some) == (("too long", 1),)
    assert model_scores([], MODELS, name="set", confidence=0.95) == ()
    assert model_differences([], MODELS, name="set", confidence=0.95) == ()


def test_several_answers_give_pass_at_k() -> None:
    item = ItemValues("0", "0", "", {"start": (1.0, 0.0, 0.0, 0.0)}, {"start": (True,) * 4})
    (score,) = model_scores([item, item], ("start",), name="set", confidence=0.95)
    assert [metric.value for metric in score.pass_at] == [0.5, 1.0]
