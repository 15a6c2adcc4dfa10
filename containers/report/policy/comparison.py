"""Policy against reference on held-out prompts: figures, plot, samples, and the caveat about the judge."""

from collections.abc import Sequence

from containers.contracts.outcome import Metric
from containers.contracts.records import ComparedTerm, PolicyEvaluation
from containers.document.model import (
    Beside,
    Block,
    Fold,
    Note,
    Plots,
    Section,
    Table,
    Text,
    Value,
    figures_table,
    heads,
)
from containers.formatting import interval, quantity
from containers.report.policy.judges import independent_judges, judge_blocks
from containers.report.policy.samples import extremes, side_by_side

_CAVEAT = (
    "The judge here is the same reward model that the policy was trained to please. A gain shows that training reached "
    "its goal; it does not show that people prefer the answers. Read the samples, and ask people or an independent "
    "judge before using the policy."
)
_CAVEAT_OF_PAIRS = (
    "The judge here is a reward model. If it learned from the same pairs as the policy, it cannot see what they got "
    "wrong. Read the samples, and ask people or an independent judge before using the policy."
)
_CAVEAT_OF_REWARDS = (
    "The judge here is the rewards that the policy was trained on: {names}. They do not show what they do not look at. "
    "Read the samples before using the policy.{more}"
)
_ONLY_MEASURE = " {names} trained nothing, and only show where reward models disagree."
_NOT_DRAWN = "Not drawn: the reward difference is the same on every prompt."


def policy_blocks(evaluation: PolicyEvaluation, *, num_samples: int, by_pairs: bool = False) -> tuple[Block, ...]:
    """Return all figures and some samples.

    Args:
        by_pairs: the policy was trained on pairs, and not to please its judge.
    """
    from containers.report.plots import policy_evaluation_plots

    plots = Plots(policy_evaluation_plots(evaluation), empty=_NOT_DRAWN)
    samples = evaluation.samples[:num_samples]
    independent = [judge.name for judge in independent_judges(evaluation)]
    caveat = () if independent else (_CAVEAT_OF_PAIRS if by_pairs else _caveat(evaluation),)
    return (
        *judge_blocks(evaluation.judges),
        *(Note(text, "caveat") for text in caveat),
        *((_rewards(evaluation.terms),) if evaluation.terms else ()),
        *((Section("Side by side", (side_by_side(extremes(samples), judges=independent),)),) if samples else ()),
        *(
            (Fold(f"All {len(samples)} samples", (side_by_side(samples, judges=independent),)),)
            if len(samples) > len(extremes(samples))
            else ()
        ),
        Fold("Reward, lengths, KL", (Beside(((_both(evaluation), _differences(evaluation)), (plots,))),)),
    )


def _caveat(evaluation: PolicyEvaluation) -> str:
    if not evaluation.terms:
        return _CAVEAT
    trained, beside = (
        ", ".join(term.name for term in evaluation.terms if term.only_measures is only) for only in (False, True)
    )
    more = _ONLY_MEASURE.format(names=beside) if beside else ""
    return _CAVEAT_OF_REWARDS.format(names=trained, more=more)


def policy_section(evaluation: PolicyEvaluation, *, by_pairs: bool) -> Section:
    """Return the comparison by itself, with all samples; `by_pairs` as in `policy_blocks`."""
    blocks = policy_blocks(evaluation, num_samples=len(evaluation.samples), by_pairs=by_pairs)
    return Section("Policy against reference", blocks)


def _both(evaluation: PolicyEvaluation) -> Table:
    rows = (
        ("Mean reward", evaluation.reward_policy, evaluation.reward_reference),
        ("Mean length", evaluation.length_policy, evaluation.length_reference),
        ("Ended by themselves", evaluation.ended_policy, evaluation.ended_reference),
    )
    return Table(
        heads(f"{evaluation.num_prompts:,} held-out prompts", "Policy", "Reference", numbers=2),
        tuple((name, _with_interval(policy), _with_interval(reference)) for name, policy, reference in rows),
    )


def _rewards(terms: Sequence[ComparedTerm]) -> Table:
    """Return each reward by itself: of an outcome, the share of right completions."""
    return Table(
        heads("Reward", "Policy", "Reference", "Difference", "Could not tell", numbers=4),
        tuple(
            (
                Text(term.name, sub="right answers" if term.is_outcome else "mean value"),
                _with_interval(term.policy),
                _with_interval(term.reference),
                _with_interval(term.difference),
                f"{term.num_unscorable:,}",
            )
            for term in terms
        ),
    )


def _with_interval(metric: Metric) -> Value:
    estimated = ", estimated" if metric.origin == "estimated" else ""
    return Text(quantity(metric.value, metric.unit), sub=f"{interval(metric)}{estimated}".lstrip(", "))


def _differences(evaluation: PolicyEvaluation) -> Table:
    figures = (
        (Text("Reward gain", term="reward gain"), evaluation.reward_difference),
        (Text("Win rate by the rewards", term="win rate"), evaluation.win_rate),
        (Text("KL", term="KL"), evaluation.kl),
        (Text("Identical completions", term="identical completions"), evaluation.identical_completions),
    )
    return figures_table([(name, metric) for name, metric in figures if metric is not None], what="Difference")
