"""The real files say what their list says, and every row of them can be used."""

from collections import Counter
from pathlib import Path

import pytest

from containers.contracts.registries import BENCHMARKS
from containers.evals.suites.base import SuiteRows
from tests.unit.factories.suite_factory import INTERVALS, inverted, perfect, scored

pytestmark = pytest.mark.shared_data

FILES = {
    "pairs": ("hh_helpful_test.jsonl.gz", 1000),
    "rm_bench": ("rmbench_pairs.jsonl.gz", 482),
    "judge_bench": ("judgebench_pairs.jsonl.gz", 186),
    "llmbar": ("llmbar_pairs.jsonl", 176),
    "arena": ("human_pref_pairs.jsonl.gz", 659),
    "truthfulqa": ("truthfulqa_triplets.jsonl", 529),
    "pku_safety": ("safety_pairs_pku_schema.jsonl.gz", 915),
    "verbosity": ("verbosity_adversarial_pairs.jsonl", 455),
}
MISSING = {"rm_bench": ("math",)}


@pytest.fixture(scope="module")
def suites(shared_data: Path) -> dict[str, SuiteRows]:
    return {name: BENCHMARKS[name].read(shared_data / file) for name, (file, _) in FILES.items()}


@pytest.mark.parametrize("name", FILES)
def test_every_row_is_used(name: str, suites: dict[str, SuiteRows]) -> None:
    rows = suites[name]
    assert rows.rows_read == len(rows.items) == FILES[name][1]
    assert rows.left_out == {}


@pytest.mark.parametrize("name", FILES)
def test_a_perfect_and_an_inverted_model_are_told_apart_on_real_rows(name: str, suites: dict[str, SuiteRows]) -> None:
    best, worst = (BENCHMARKS[name].judge(scored(suites[name], score), INTERVALS) for score in (perfect, inverted))
    assert best.score is not None
    assert worst.score is not None
    assert (best.score.value, worst.score.value) == (pytest.approx(1.0), pytest.approx(0.0))
    assert best.missing == worst.missing == MISSING.get(name, ())


def test_the_parts_of_the_suites_have_the_sizes_that_their_list_states(suites: dict[str, SuiteRows]) -> None:
    sizes = {name: Counter(item.subset for item in rows.items) for name, rows in suites.items()}
    assert sizes["rm_bench"] == {"chat": 83, "code": 94, "safety-refuse": 190, "safety-response": 115}
    assert sizes["llmbar"] == {
        "Natural": 40,
        "Adversarial/Neighbor": 57,
        "Adversarial/GPTInst": 34,
        "Adversarial/GPTOut": 23,
        "Adversarial/Manual": 22,
    }
    assert sizes["pku_safety"] == {"one_safe": 570, "should_respond": 345}
    assert Counter(len(item.comparisons) for item in suites["arena"].items) == {1: 621, 0: 38}


def test_a_model_that_counts_characters_is_found_out(suites: dict[str, SuiteRows]) -> None:
    """Longer answers are often the better ones to people, and never in the suites that were made against length."""
    length = {
        name: BENCHMARKS[name].judge(
            scored(suites[name], lambda item, place: float(len(item.responses[place]))), INTERVALS
        )
        for name in ("arena", "verbosity", "rm_bench")
    }
    scores = {name: figures.score.value for name, figures in length.items() if figures.score is not None}
    assert scores["arena"] > 0.6
    assert scores["verbosity"] == 0
    by_difficulty = {section.name: section.value for section in length["rm_bench"].sections}
    assert by_difficulty["easy"] > 0.8 > 0.2 > by_difficulty["hard"]


@pytest.mark.parametrize(
    ("file", "pairs", "ties"), [("llmbar_pairs.jsonl", 176, 0), ("human_pref_pairs.jsonl.gz", 621, 38)]
)
def test_a_benchmarks_file_in_a_known_schema_can_also_be_read_as_plain_pairs(
    file: str, pairs: int, ties: int, shared_data: Path
) -> None:
    rows = BENCHMARKS["pairs"].read(shared_data / file)
    assert len(rows.items) == len({item.item_id for item in rows.items}) == pairs
    assert rows.left_out == ({"tie": ties} if ties else {})


@pytest.mark.parametrize("name", ["arena", "llmbar", "truthfulqa", "verbosity"])
def test_a_suite_and_the_reader_of_training_data_agree_on_which_response_is_the_better_one(
    name: str, suites: dict[str, SuiteRows], shared_data: Path
) -> None:
    pairs = {item.responses for item in BENCHMARKS["pairs"].read(shared_data / FILES[name][0]).items}
    ordered = {
        (item.responses[pair.better], item.responses[pair.worse])
        for item in suites[name].items
        for pair in item.comparisons
    }
    assert ordered == pairs
