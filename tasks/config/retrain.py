"""Rules by which a challenger becomes champion: the section `retrain:` of a run, and the judgement. Pure."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Fraction, Frozen
from containers.contracts.champions import Comparison, Contest
from containers.formatting import percent
from containers.report.champions import contest_text, points

# Suites whose possible falls a decision names.
_MAX_NAMED = 3


class RetrainRules(Frozen):
    """When a retrained model takes the place of the champion."""

    models: Literal["reward_model", "reward_model_and_policy"] = Field(
        "reward_model",
        description="Models that a retraining trains; the then champion reward model judges the policy, and trains it "
        "unless `train_dpo` does",
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Level of the paired interval over prompts")
    alpha: float = Field(0.05, gt=0, lt=1, description="The p-value of McNemar's exact test must be below this")
    regression_budget: Fraction = Field(
        0.01,
        description="How far the score on each suite of evaluate_reward_model, and on all together, may fall; 0.01 is "
        "one point. A challenger is stopped by a fall beyond it that is no chance (alpha, over the number of suites)",
    )
    regression_budgets: dict[str, Fraction] = Field(
        {}, description="The same for single suites, by their name; replaces `regression_budget` there"
    )
    rule_out_regression_on: tuple[str, ...] = Field(
        (),
        description="Suites on which a fall beyond the budget must be ruled out (lower end at alpha), not only be "
        "unproven; needs a suite of thousands of items",
    )

    def budget_of(self, name: str) -> float:
        """How far the score on that suite may fall."""
        return self.regression_budgets.get(name, self.regression_budget)


def wins(comparison: Comparison) -> bool:
    """Whether the challenger takes the champion's place.

    It must be better on the frozen set beyond chance (interval above 0, and p below alpha), by an independent judge (no
    reward model that trained it, or of its own pairs), and must not fall further than its budget on any suite beyond
    chance.
    """
    return leads(comparison) and not comparison.judged_by_teacher


def leads(comparison: Comparison) -> bool:
    """Whether the figures are in favour of the challenger, by any judge."""
    return _is_better(comparison.contests[0], comparison.alpha) and not _regressions(comparison)


def judgement(comparison: Comparison) -> str:
    """Say which version is champion now, and why, with the figures."""
    champion, challenger = f"version {comparison.champion}", f"version {comparison.challenger}"
    first, regressions = comparison.contests[0], _regressions(comparison)
    if not _is_better(first, comparison.alpha):
        return f"{champion} stays champion: {challenger} {_why_not_better(first, comparison)}. {_sentence(first)}"
    if regressions:
        fallen = "; ".join(map(_fall, regressions))
        return f"{champion} stays champion: {challenger} is better on {first.name}, but {fallen}. {_sentence(first)}"
    if comparison.judged_by_teacher:
        return (
            f"{champion} stays champion until a person decides: {challenger} wins, but {_by_which_judge(comparison)}. "
            f"Compare their answers; `rlhf promote --model policy --version {comparison.challenger}` makes it "
            f"champion. {_sentence(first)}{_not_excluded(comparison)}"
        )
    return (
        f"{challenger} is champion now: it is better than {champion} beyond chance. "
        f"{_sentence(first)}{_not_excluded(comparison)}"
    )


def _by_which_judge(comparison: Comparison) -> str:
    """Why the scores of this judge do not decide."""
    if comparison.trained_on_pairs:
        return (
            "by the scores of a reward model. If that learned from the same pairs as the policy, it cannot see what "
            "they got wrong"
        )
    return "by the scores of the reward model that it was trained against, which is no evidence that it is better"


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
    if contest.detectable is None:
        return "is not better beyond chance"
    return (
        f"is not better beyond chance (such data show a true difference of {points(contest.detectable)} points or more "
        "in 80 % of cases)"
    )


def _fall(contest: Contest) -> str:
    """How far the challenger falls on a suite, and what is allowed."""
    allowed = f"allowed are {points(contest.budget).lstrip('+')} points"
    if contest.difference is None:
        return f"nothing was left on {contest.name} to rule out a fall by ({allowed})"
    if contest.must_rule_out:
        fall = points(-(contest.at_least or 0.0)).lstrip("+")
        return f"a fall on {contest.name} by {fall} points is not ruled out ({allowed})"
    fall = points(-contest.difference.value).lstrip("+")
    least = points(-(contest.at_most or 0.0)).lstrip("+")
    return f"falls on {contest.name} by {fall} points, beyond chance by at least {least} points ({allowed})"


def _not_excluded(comparison: Comparison) -> str:
    """The falls that the data leave possible on other suites, the largest first; empty where there is none.

    Example: ` Falls of up to 2.4 points on B and 1.8 on A are not excluded (each one-sided at 95 %).`
    """
    falls = [(-item.at_least, item.name) for item in comparison.contests if item.at_least is not None]
    # A fall that shows as 0.0 points would only puzzle.
    shown = [(points(fall).lstrip("+"), name) for fall, name in sorted(falls, reverse=True) if round(fall, 3) > 0]
    if not shown:
        return ""
    first, *others = shown
    named = [f"{first[0]} points on {first[1]}", *(f"{fall} on {name}" for fall, name in others[: _MAX_NAMED - 1])]
    if len(shown) > _MAX_NAMED:
        named.append(f"smaller ones on {len(shown) - _MAX_NAMED} more")
    last = f" and {named[-1]} are" if len(named) > 1 else " is"
    falls_text = f"{'Falls' if len(named) > 1 else 'A fall'} of up to {', '.join(named[:-1] or named)}{last}"
    return f" {falls_text} not excluded (each one-sided at {percent(1 - comparison.alpha)})."


def _regressions(comparison: Comparison) -> tuple[Contest, ...]:
    return tuple(item for item in comparison.contests if item.regresses)


def _sentence(contest: Contest) -> str:
    text = contest_text(contest)
    return f"{text[:1].upper()}{text[1:]}."
