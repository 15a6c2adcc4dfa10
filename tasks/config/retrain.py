"""Rules by which a challenger becomes champion: the section `retrain:` of a run, and the judgement. Pure."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Fraction, Frozen
from containers.contracts.champions import Comparison, Contest
from containers.report.champions import contest_text, points


class RetrainRules(Frozen):
    """When a retrained model takes the place of the champion."""

    models: Literal["reward_model", "reward_model_and_policy"] = Field(
        "reward_model",
        description="Models that a retraining trains; a policy is trained against the then champion reward model",
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Level of the paired interval over prompts")
    alpha: float = Field(0.05, gt=0, lt=1, description="The p-value of McNemar's exact test must be below this")
    regression_budget: Fraction = Field(
        0.01, description="How far the accuracy on each suite of evaluate_reward_model may fall; 0.01 is one point"
    )
    regression_budgets: dict[str, Fraction] = Field(
        {}, description="The same for single suites, by their name; replaces `regression_budget` there"
    )

    def budget_of(self, name: str) -> float:
        """How far the accuracy on that suite may fall."""
        return self.regression_budgets.get(name, self.regression_budget)


def wins(comparison: Comparison) -> bool:
    """Whether the challenger takes the champion's place.

    It must be better on the frozen set beyond chance (interval above 0, and p below alpha), and must not fall further
    than its budget on any suite.
    """
    return _is_better(comparison.contests[0], comparison.alpha) and not _regressions(comparison)


def judgement(comparison: Comparison) -> str:
    """Say which version is champion now, and why, with the figures."""
    champion, challenger = f"version {comparison.champion}", f"version {comparison.challenger}"
    first, regressions = comparison.contests[0], _regressions(comparison)
    if not _is_better(first, comparison.alpha):
        return f"{champion} stays champion: {challenger} {_why_not_better(first, comparison)}. {_sentence(first)}"
    if regressions:
        fallen = "; ".join(
            f"on {item.name} by {points(-item.difference.value).lstrip('+')} points, allowed are "
            f"{points(item.budget).lstrip('+')}"
            for item in regressions
            if item.difference is not None
        )
        return (
            f"{champion} stays champion: {challenger} is better on {first.name}, but falls {fallen}. {_sentence(first)}"
        )
    return f"{challenger} is champion now: it is better than {champion} beyond chance. {_sentence(first)}"


def _is_better(contest: Contest, alpha: float) -> bool:
    low = contest.difference.ci_low if contest.difference else None
    return low is not None and low > 0 and contest.p_value < alpha


def _why_not_better(contest: Contest, comparison: Comparison) -> str:
    found = contest.difference
    if found is None:
        return "cannot be compared with it: no data are left that neither was trained on"
    high = found.ci_high
    if high is not None and high < 0 and contest.p_value < comparison.alpha:
        return "is worse beyond chance"
    return "is not better beyond chance"


def _regressions(comparison: Comparison) -> tuple[Contest, ...]:
    return tuple(item for item in comparison.contests if item.regresses)


def _sentence(contest: Contest) -> str:
    text = contest_text(contest)
    return f"{text[:1].upper()}{text[1:]}."
