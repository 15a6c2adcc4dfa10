"""Policy against reference on held-out prompts: figures, plot, samples, and the caveat about the judge."""

from containers.contracts.outcome import Metric
from containers.contracts.records import PolicyEvaluation
from containers.document.model import (
    Beside,
    Block,
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
from containers.report.samples import side_by_side

_CAVEAT = (
    "The judge here is the same reward model that the policy was trained to please. A gain shows that training reached "
    "its goal; it does not show that people prefer the answers. Read the samples, and ask people or an independent "
    "judge before using the policy."
)
_NOT_DRAWN = "Not drawn: the reward difference is the same on every prompt."


def policy_blocks(evaluation: PolicyEvaluation, *, num_samples: int) -> tuple[Block, ...]:
    """Return all figures and some samples."""
    from containers.report.plots import policy_evaluation_plots

    plots = Plots(policy_evaluation_plots(evaluation), empty=_NOT_DRAWN)
    samples = evaluation.samples[:num_samples]
    return (
        Note(_CAVEAT, "caveat"),
        Beside(((_both(evaluation), _differences(evaluation)), (plots,))),
        *((Section("Side by side", (side_by_side(samples),)),) if samples else ()),
    )


def policy_section(evaluation: PolicyEvaluation) -> Section:
    """Return the comparison by itself, with all samples."""
    return Section("Policy against reference", policy_blocks(evaluation, num_samples=len(evaluation.samples)))


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


def _with_interval(metric: Metric) -> Value:
    estimated = ", estimated" if metric.origin == "estimated" else ""
    return Text(quantity(metric.value, metric.unit), sub=f"{interval(metric)}{estimated}".lstrip(", "))


def _differences(evaluation: PolicyEvaluation) -> Table:
    figures = (
        (Text("Reward gain", term="reward gain"), evaluation.reward_difference),
        (Text("Win rate", term="win rate"), evaluation.win_rate),
        (Text("KL", term="KL"), evaluation.kl),
        (Text("Identical completions", term="identical completions"), evaluation.identical_completions),
    )
    return figures_table([(name, metric) for name, metric in figures if metric is not None], what="Difference")
