"""A reader who sees "245 answers" takes them for 245 observations: each figure over items says how many prompts."""

from collections.abc import Iterator

import numpy as np
import pytest
from pydantic import BaseModel

from containers.contracts.certificate import SuiteEvaluation
from containers.contracts.outcome import Metric
from containers.contracts.registries import BENCHMARKS
from containers.evals.answer_edits import CUTTING, LONGER_WORDING, SHORTER_WORDING
from containers.evals.length_effects import EditedPairs, PaddedPair, ScoredEdit
from containers.evals.scored_suite import ScoredSuite
from containers.evals.suite_evaluation import evaluate_suite
from containers.evals.suites.base import Comparison, Intervals, ScoredItem, SuiteItem, SuiteRows

INTERVALS = Intervals(confidence=0.95, num_bootstrap=100, seed=0)
NUM_PROMPTS, VOTES = 60, 3
KINDS = ("padding", "repetition", LONGER_WORDING, SHORTER_WORDING, CUTTING)


def _votes() -> list[ScoredItem]:
    """Three votes on each of sixty prompts, every fourth a tie."""
    draw, found = np.random.default_rng(3), []
    for number in range(NUM_PROMPTS * VOTES):
        prompt = ({"role": "user", "content": f"question {number // VOTES}"},)
        texts = tuple("x" * int(length) for length in draw.integers(10, 400, size=2))
        comparisons = (Comparison(0, 1),) if number % 4 else ()
        item = SuiteItem(f"item-{number}", prompt, texts, f"source {number % 2}", comparisons)
        found.append(ScoredItem(item, (float(draw.normal(0.5)), float(draw.normal()))))
    return found


@pytest.fixture(scope="module")
def suite() -> SuiteEvaluation:
    votes, draw = _votes(), np.random.default_rng(4)
    rows = SuiteRows(tuple(vote.item for vote in votes), len(votes))
    scored = ScoredSuite("arena", BENCHMARKS["arena"], rows).with_scores(votes, num_over_long=0)
    prompts = [vote.item.prompt_id for vote in votes]
    edits = tuple(
        ScoredEdit(kind, prompt, float(draw.normal()), float(draw.uniform(0.1, 1)))
        for kind in KINDS
        for prompt in prompts
    )
    padded = tuple(PaddedPair(prompt, *map(float, draw.normal(size=4))) for prompt in prompts)
    return evaluate_suite(scored, INTERVALS, edited=EditedPairs(edits, (), padded))


def _metrics(record: BaseModel, path: str = "") -> Iterator[tuple[str, Metric]]:
    for name in type(record).model_fields:
        value = getattr(record, name)
        for entry in value if isinstance(value, tuple) else (value,):
            if isinstance(entry, Metric):
                yield f"{path}{name}:{entry.name}", entry
            elif isinstance(entry, BaseModel):
                yield from _metrics(entry, f"{path}{name}.")


def test_every_figure_over_items_says_how_many_prompts_they_have(suite: SuiteEvaluation) -> None:
    found = dict(_metrics(suite))
    assert len(found) > 25
    assert {"sections:tie_separation", "length.slope:length_slope", "length.interventions.effect:padding_effect"} < set(
        found
    )
    assert [name for name, metric in found.items() if metric.count is not None and metric.num_prompts is None] == []


def test_the_prompts_are_counted_once(suite: SuiteEvaluation) -> None:
    found = dict(_metrics(suite))
    effect = found["length.interventions.effect:padding_effect"]
    assert (effect.count, effect.num_prompts) == (NUM_PROMPTS * VOTES, NUM_PROMPTS)
    separation = found["sections:tie_separation"]
    assert (separation.count, separation.num_prompts) == (NUM_PROMPTS * VOTES, NUM_PROMPTS)
    assert found["expected_calibration_error:expected_calibration_error"].num_prompts == NUM_PROMPTS
