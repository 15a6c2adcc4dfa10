"""Who reads the first line of a comparison must know which arm is better, by whose word, and whether that is chance."""

import re
from dataclasses import replace

import pytest

from containers.arms.matrix import arm_cell, arm_value, corrected, pairs_of_arms
from containers.arms.page import ArmRun, ArmsReport, SharedResult, arms_page, arms_verdict
from containers.arms.records import START, JudgedArms, PolicyComparison
from containers.document.html import page_html
from containers.document.markdown import page_markdown
from containers.document.model import text_of
from tests.unit.factories.report.report_factory import policy_evaluation

PROMPTS = [f"p{number}" for number in range(100)]


def judged(name: str = "exact", *, trained: tuple[str, ...] = (), **rates: float) -> JudgedArms:
    """A judge by which each arm is right on the first part of the prompts."""
    right = {arm: [float(place < rate * 100) for place in range(100)] for arm, rate in rates.items()}
    cells = []
    for one, seed, other, _ in pairs_of_arms({arm: [] if arm == START else [0] for arm in rates}):
        points = [0.5 + (own - its) / 2 for own, its in zip(right[one], right[other], strict=True)]
        cells.append(arm_cell(one, other, {seed: points}, PROMPTS, confidence=0.95))
    values = (arm_value(arm, {0: of}, PROMPTS, is_outcome=True, confidence=0.95) for arm, of in right.items())
    return JudgedArms(
        name=name,
        type=name,
        shown="the reference answers",
        is_outcome=True,
        trained=trained,
        cells=tuple(cell for cell in cells if cell),
        values=tuple(value for value in values if value),
    )


def report(*judges: JudgedArms) -> ArmsReport:
    arms = tuple(dict.fromkeys(value.arm for judge in judges for value in judge.values))
    runs = tuple(
        ArmRun(arm, 0, "policy gate passed", True, policy_evaluation(), f"arms/{arm}/report.html", 0.25)
        for arm in arms
        if arm != START
    )
    return ArmsReport(
        name="sums",
        run_id="20261129-1",
        started_at="2026-11-29T02:00:00+00:00",
        command="rlhf arms -c configs/arms/sums.yaml",
        profile="cpu",
        runs=runs,
        differences={"train_policy.algorithm": {"grpo": "grpo", "rloo": "rloo"}},
        shared=(SharedResult("train_sft", ("grpo", "rloo"), 0.1),),
        gpu_hours=0.7,
        max_gpu_hours=1.0,
        has_gpus=False,
        comparison=PolicyComparison(arms=arms, num_prompts=100, completions_per_prompt=1, judges=corrected(judges)),
    )


def test_a_winner_is_named_with_its_judge_and_the_shares_behind_it() -> None:
    banner = arms_verdict(report(judged(start=0.3, grpo=0.9, rloo=0.6)))
    assert banner.headline == "grpo is better than every other arm and the start model, by exact."
    assert banner.tone == "good"
    assert banner.details == ("grpo 90.0 %, rloo 60.0 %, start 30.0 % by exact.",)


def test_a_judge_that_trained_the_winner_makes_nothing_green() -> None:
    banner = arms_verdict(report(judged(start=0.3, grpo=0.9, rloo=0.6, trained=("grpo",))))
    assert banner.tone == "plain"
    assert "exact took part in the training of grpo." in banner.details


def test_without_a_winner_it_says_who_is_unbeaten() -> None:
    banner = arms_verdict(report(judged(start=0.3, grpo=0.9, rloo=0.89)))
    assert banner.headline == "No arm is shown to be better than all others by exact."
    assert banner.details[0] == "Unbeaten: grpo and rloo."


def test_the_rewards_alone_are_no_evidence() -> None:
    banner = arms_verdict(report(judged("rewards", start=0.3, grpo=0.9, rloo=0.6)))
    assert banner.headline == "grpo has a higher reward than every other arm and the start model, by rewards."
    assert banner.tone == "plain" and "no evidence of better answers" in banner.details[0]


def test_a_judge_decides_before_the_rewards_and_one_that_is_none_does_not() -> None:
    biased = judged("biased", start=0.3, grpo=0.2, rloo=0.9).model_copy(update={"problem": "it chose the first"})
    found = report(biased, judged(start=0.3, grpo=0.9, rloo=0.6), judged("rewards", start=0.3, grpo=0.1, rloo=0.6))
    assert arms_verdict(found).headline.startswith("grpo is better")
    assert "biased is no judge here: it chose the first." in page_html(arms_page(found))


def test_an_arm_that_did_not_come_to_its_end_is_on_the_first_screen() -> None:
    found = report(judged(start=0.3, grpo=0.9, rloo=0.6))
    failed = replace(found.runs[1], outcome="train_policy failed (diverged): the loss is not finite", evaluation=None)
    banner = arms_verdict(replace(found, runs=(found.runs[0], failed)))
    assert banner.details[-1] == "rloo: train_policy failed (diverged): the loss is not finite."
    nothing = arms_verdict(replace(found, comparison=None, problem="Only one policy was judged.", runs=(failed,)))
    assert nothing.tone == "bad" and nothing.headline == "No two policies could be compared."


def test_each_cell_is_seen_from_both_sides() -> None:
    page = arms_page(report(judged(start=0.3, grpo=0.9, rloo=0.6)))
    html = page_html(page)
    rows = {
        found[1]: re.findall(r"([\d.]+ %)(?:</span>)? <span class=\"sub\">", found[2])
        for found in re.finditer(r'<th scope="row">(\w+)</th>(.*?)</tr>', html, re.DOTALL)
        if "over rloo" in found[2]
    }
    assert rows["grpo"] == ["90.0 %", "80.0 %", "65.0 %"]  # right, over start, over rloo
    assert rows["rloo"] == ["60.0 %", "65.0 %", "35.0 %"]
    assert text_of(page.sections[0].title) == "Arm against arm"


@pytest.mark.parametrize("shown", ["train_sft", "GPU time", "Time of this machine", "max_gpu_hours", "√KL"])
def test_cost_differences_and_frontier_are_on_the_page(shown: str) -> None:
    html = page_html(arms_page(report(judged(start=0.3, grpo=0.9, rloo=0.6))))
    if shown == "GPU time":
        assert shown not in html
    else:
        assert shown in html
    assert "<script" not in html


def test_the_page_in_prefect_has_the_matrix() -> None:
    text = page_markdown(arms_page(report(judged(start=0.3, grpo=0.9, rloo=0.6))))
    assert "| grpo |" in text and "over rloo" in text
