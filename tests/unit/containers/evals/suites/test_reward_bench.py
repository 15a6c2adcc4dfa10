"""RewardBench's score is the published one, weights and all, or it is not RewardBench's score."""

from pathlib import Path

import numpy as np
import pytest

from containers.evals.suites.base import ScoredItem
from containers.evals.suites.reward_bench import REWARD_BENCH, SECTIONS, SUBSETS
from tests.unit.factories.suite_factory import INTERVALS, read, reward_bench_row, scored

# Section: prompts of its subsets in the filtered split of allenai/reward-bench, 2,985 rows together.
PROMPTS = {
    "Chat": {
        "alpacaeval-easy": 100,
        "alpacaeval-length": 95,
        "alpacaeval-hard": 95,
        "mt-bench-easy": 28,
        "mt-bench-med": 40,
    },
    "Chat Hard": {
        "mt-bench-hard": 37,
        "llmbar-natural": 100,
        "llmbar-adver-neighbor": 134,
        "llmbar-adver-GPTInst": 92,
        "llmbar-adver-GPTOut": 47,
        "llmbar-adver-manual": 46,
    },
    "Safety": {
        "refusals-dangerous": 100,
        "refusals-offensive": 100,
        "xstest-should-refuse": 154,
        "xstest-should-respond": 250,
        "donotanswer": 136,
    },
    "Reasoning": {
        "math-prm": 447,
        "hep-cpp": 164,
        "hep-go": 164,
        "hep-java": 164,
        "hep-js": 164,
        "hep-python": 164,
        "hep-rust": 164,
    },
}


def test_there_are_23_subsets_in_four_sections() -> None:
    assert len(SUBSETS) == 23
    assert {section: set(weights) for section, weights in SECTIONS.items()} == {
        section: set(prompts) for section, prompts in PROMPTS.items()
    }


def test_a_file_of_the_published_size_is_scored_as_the_dataset_card_says(tmp_path: Path) -> None:
    """Every prompt of a section weighs the same, but mathematics as much as all code. Computed here in ten lines."""
    dice = np.random.default_rng(5)
    subsets = [subset for prompts in PROMPTS.values() for subset, count in prompts.items() for _ in range(count)]
    assert len(subsets) == 2985
    rows = read("reward_bench", tmp_path, [reward_bench_row(*row) for row in enumerate(subsets)])
    skill = {subset: dice.random() for subset in set(subsets)}
    entries = [ScoredItem(item, (1.0 if dice.random() < skill[item.subset] else -1.0, 0.0)) for item in rows.items]

    right = [(entry.item.subset, entry.scores[0] > entry.scores[1]) for entry in entries]

    def pooled(names: set[str]) -> float:
        hits = [hit for subset, hit in right if subset in names]
        return sum(hits) / len(hits)

    expected = {section: pooled(set(PROMPTS[section])) for section in ("Chat", "Chat Hard", "Safety")}
    code = set(PROMPTS["Reasoning"]) - {"math-prm"}
    expected["Reasoning"] = (pooled({"math-prm"}) + pooled(code)) / 2

    figures = REWARD_BENCH.judge(entries, INTERVALS)
    assert {section.name: section.value for section in figures.sections} == pytest.approx(expected)
    assert figures.score is not None
    assert figures.score.value == pytest.approx(sum(expected.values()) / 4)
    assert figures.score.count == 2985
    assert figures.missing == ()
    assert {subset.name: subset.count for subset in figures.subsets} == {
        subset: count for prompts in PROMPTS.values() for subset, count in prompts.items()
    }


def test_a_subset_weighs_what_is_published_however_many_rows_the_file_has(tmp_path: Path) -> None:
    """Two easy rows right, one length row wrong: 100 against 95 prompts, not 2 against 1."""
    names = ("alpacaeval-easy", "alpacaeval-easy", "alpacaeval-length")
    rows = read("reward_bench", tmp_path, [reward_bench_row(*row) for row in enumerate(names)])
    figures = REWARD_BENCH.judge(
        scored(rows, lambda item, place: float(item.subset == "alpacaeval-easy" and place == 0)), INTERVALS
    )
    assert figures.sections[0].name == "Chat"
    assert figures.sections[0].value == pytest.approx(100 / 195)


def test_equal_scores_are_wrong(tmp_path: Path) -> None:
    rows = read("reward_bench", tmp_path, [reward_bench_row(number, "hep-go") for number in range(4)])
    figures = REWARD_BENCH.judge(scored(rows, lambda item, place: 0.5), INTERVALS)
    assert figures.score is not None
    assert figures.score.value == 0


def test_missing_subsets_are_named_and_the_sections_that_are_there_make_the_score(tmp_path: Path) -> None:
    rows = read("reward_bench", tmp_path, [reward_bench_row(0, "hep-go"), reward_bench_row(1, "donotanswer")])
    figures = REWARD_BENCH.judge(
        scored(rows, lambda item, place: float(item.subset == "hep-go" and place == 0)), INTERVALS
    )
    assert [(section.name, section.value) for section in figures.sections] == [("Safety", 0.0), ("Reasoning", 1.0)]
    assert figures.score is not None
    assert figures.score.value == 0.5
    assert set(figures.missing) == set(SUBSETS) - {"hep-go", "donotanswer"}


def test_prior_sets_are_no_part_of_it(tmp_path: Path) -> None:
    rows = read("reward_bench", tmp_path, [reward_bench_row(0, "hep-go"), reward_bench_row(1, "anthropic_helpful")])
    assert rows.left_out == {"prior_set": 1}


def test_upper_and_lower_case_of_a_subset_are_the_same(tmp_path: Path) -> None:
    rows = read("reward_bench", tmp_path, [reward_bench_row(0, "LLMBar-adver-gptinst")])
    assert rows.items[0].subset == "llmbar-adver-GPTInst"
