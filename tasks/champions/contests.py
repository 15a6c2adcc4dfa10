"""Build contests from the evaluations of champion and challenger. Reads parquet files; starts nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from containers.contracts.certificate import TEST_SUITE, Certificate, SuiteEvaluation
from containers.contracts.champions import Contest
from containers.contracts.names import CERTIFICATE_FILE, COMPLETIONS_FILE
from containers.contracts.registries import BENCHMARKS
from containers.evals.intervals import detectable, mean_end, mean_interval
from containers.evals.item_scores import read_item_scores
from containers.evals.paired import PairedDifference, clustered_difference, mean_difference
from containers.evals.suite_difference import suite_difference
from tasks.config.retrain import RetrainRules

FROZEN_PAIRS = "the frozen pairs"
FROZEN_PROMPTS = "the frozen prompts"
ALL_SUITES = "all suites together"

_RIGHT = {"policy": 1.0, "tie": 0.5, "reference": 0.0}
_POWER = 0.8


@dataclass(frozen=True)
class Compared:
    """What two models did on the same items."""

    name: str
    measure: Literal["accuracy", "win rate", "score"]
    difference: PairedDifference | None
    champion: float | None
    challenger: float | None
    seen_in_training: int = 0
    not_in_both: int = 0

    def contest(self, rules: RetrainRules) -> Contest:
        """The contest that has to be won."""
        found = self.difference
        return Contest(
            name=self.name,
            measure=self.measure,
            count=found.difference.count or 0 if found else 0,
            num_prompts=found.num_prompts if found else 0,
            seen_in_training=self.seen_in_training,
            not_in_both=self.not_in_both,
            champion=self.champion,
            challenger=self.challenger,
            difference=found.difference if found else None,
            num_better=found.num_better if found else 0,
            num_worse=found.num_worse if found else 0,
            p_value=found.p_value if found else 1.0,
            detectable=detectable(found.figure, confidence=rules.confidence, power=_POWER) if found else None,
        )

    def bounded_contest(self, rules: RetrainRules, *, num_bounded: int) -> Contest:
        """The contest in which the challenger may not fall further than its budget.

        Args:
            num_bounded: such contests; a fall must be beyond chance at `alpha` over their number (Bonferroni). Where
                one must be ruled out, each is tested at `alpha` itself.
        """
        contest = self.contest(rules)
        bounds: dict[str, object] = {
            "budget": rules.budget_of(self.name),
            "must_rule_out": self.name in rules.rule_out_regression_on,
        }
        if self.difference is not None:
            figure, alpha, one_sided = self.difference.figure, rules.alpha / num_bounded, 1 - 2 * rules.alpha
            # Each rule by its own end of the interval: of equal models the lower end is as far below 0 as this.
            shown = (
                detectable(figure, confidence=one_sided, power=_POWER)
                if bounds["must_rule_out"]
                else detectable(figure, confidence=1 - 2 * alpha, power=_POWER) + rules.budget_of(self.name)
            )
            bounds |= {
                "at_most": mean_end(figure, alpha=alpha),
                "at_least": mean_interval(figure, confidence=one_sided)[0],
                "detectable": shown,
            }
        return contest.model_copy(update=bounds)


def reward_model_contests(
    champion: Path, challenger: Path, *, seen: frozenset[str], rules: RetrainRules
) -> tuple[Contest, ...]:
    """The frozen pairs, then each suite by its own score, then all suites together, from two evaluations of them.

    Args:
        seen: prompts that one of the two was trained on; their items are left out for both.
    """
    certificate = Certificate.model_validate_json((challenger / CERTIFICATE_FILE).read_bytes())
    frozen, *suites = (_on_suite(champion, challenger, suite, seen=seen, rules=rules) for suite in certificate.suites)
    return contests_of(frozen, suites, rules)


def contests_of(frozen: Compared, suites: Sequence[Compared], rules: RetrainRules) -> tuple[Contest, ...]:
    """The contest on the frozen set, then on each suite, then, where there are several, on all suites together."""
    known = [suite for suite in suites if suite.difference is not None]
    bounded = [*suites, *([_together(known, rules)] if len(known) > 1 else [])]
    return (frozen.contest(rules), *(item.bounded_contest(rules, num_bounded=len(bounded)) for item in bounded))


def _on_suite(
    champion: Path, challenger: Path, suite: SuiteEvaluation, *, seen: frozenset[str], rules: RetrainRules
) -> Compared:
    first, second = (read_item_scores(folder / suite.item_scores_file) for folder in (champion, challenger))
    shared = [key for key in first if key in second]
    clean = [key for key in shared if first[key].item.prompt_id not in seen]
    is_frozen = suite.name == TEST_SUITE
    compared = Compared(
        name=FROZEN_PAIRS if is_frozen else suite.name,
        measure="accuracy" if is_frozen else "score",
        difference=None,
        champion=None,
        challenger=None,
        seen_in_training=len(shared) - len(clean),
        not_in_both=len(first.keys() | second.keys()) - len(shared),
    )
    found = suite_difference(
        BENCHMARKS[suite.benchmark],
        [second[key] for key in clean],
        [first[key] for key in clean],
        confidence=rules.confidence,
    )
    if found is None:
        return compared
    return replace(compared, difference=found.difference, champion=found.first, challenger=found.second)


def _together(suites: Sequence[Compared], rules: RetrainRules) -> Compared:
    """The mean over the suites, each with the same weight."""
    return Compared(
        name=ALL_SUITES,
        measure="score",
        difference=mean_difference(
            [suite.difference for suite in suites if suite.difference], confidence=rules.confidence
        ),
        champion=_mean(suite.champion for suite in suites if suite.champion is not None),
        challenger=_mean(suite.challenger for suite in suites if suite.challenger is not None),
    )


def policy_contest(evaluation: Path, *, seen: frozenset[str], rules: RetrainRules) -> Contest:
    """Win rate on the frozen prompts, from an evaluation whose reference is the champion.

    A prompt counts as won where the challenger wins more than half of its completions.
    """
    answered: dict[str, list[float]] = {}
    for row in _rows(evaluation / COMPLETIONS_FILE, ("prompt_id", "winner")):
        answered.setdefault(row["prompt_id"], []).append(_RIGHT[row["winner"]])
    rates = {name: sum(values) / len(values) for name, values in answered.items() if name not in seen}
    compared = Compared(
        name=FROZEN_PROMPTS,
        measure="win rate",
        difference=None,
        champion=None,
        challenger=None,
        seen_in_training=len(answered) - len(rates),
    )
    if rates:
        mean = _mean(rates.values())
        compared = replace(
            compared,
            difference=clustered_difference(
                [2 * rate - 1 for rate in rates.values()], list(rates), confidence=rules.confidence
            ),
            champion=1 - mean,
            challenger=mean,
        )
    return compared.contest(rules)


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path, columns=list(columns)).to_pylist()
    return rows


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
