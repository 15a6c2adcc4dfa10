"""The funnel of filter_dataset for its page in Prefect. Every cell is escaped."""

from containers.contracts.records import Funnel
from containers.formatting import MISSING, humanize, markdown_table, markdown_text
from tasks.pages.markdown import joined
from tasks.pages.plots import bar_plot

_MAX_GROUPS = 12


def funnel_markdown(funnel: Funnel) -> str:
    """Return the rows in and out of every filter, then the uses of the kept pairs."""
    steps = [
        (humanize(step.reason), step.rows_in, step.dropped, step.rows_out) for step in funnel.steps if step.dropped
    ]
    table = markdown_table(
        ("Filter", "Rows in", "Dropped", "Rows out"),
        [(name, *(f"{count:,}" for count in counts)) for name, *counts in steps],
        right=(1, 2, 3),
    )
    idle = [humanize(step.reason).lower() for step in funnel.steps if not step.dropped]
    nothing = f"Dropped nothing: {markdown_text(', '.join(idle), limit=600)}." if idle else ""
    plot = bar_plot("Rows dropped, by filter", [(name, dropped) for name, _, dropped, _ in steps])
    uses = markdown_table(
        ("Used for", "Number", "Unit"),
        [
            ("Reward model, training", f"{funnel.train_pairs:,}", "pairs"),
            ("Reward model, validation", f"{funnel.validation_pairs:,}", "pairs"),
            ("Set aside for the policy", f"{funnel.pairs_set_aside_for_policy:,}", "pairs"),
            ("Policy, training", f"{funnel.policy_train_prompts:,}", "prompts"),
            ("Policy, evaluation", f"{funnel.policy_eval_prompts:,}", "prompts"),
        ],
        right=(1,),
    )
    domains = markdown_table(
        ("Domain", "Pairs kept"),
        [(name, f"{count:,}") for name, count in funnel.kept_by_domain[:_MAX_GROUPS]],
        right=(1,),
    )
    left = funnel.steps[-1].rows_out if funnel.steps else funnel.rows_read
    summary = (
        f"{funnel.rows_read:,} rows read from {markdown_text(', '.join(funnel.sources)) or MISSING}; "
        f"{funnel.rows_read - left:,} dropped, {left:,} kept."
    )
    return joined(
        "## What became of every row", summary, uses, plot, table, nothing, _polarity(funnel), _suites(funnel), domains
    )


def _polarity(funnel: Funnel) -> str:
    """Return how often labels agree with scores in the data and with a reference reward model."""
    rows = [(item.source, f"{item.num_agreeing:,}", f"{item.num_judged:,}") for item in funnel.polarity]
    table = markdown_table(("Label agrees with the scores beside it", "Rows", "Of"), rows, right=(1, 2)) if rows else ""
    asked = [
        (
            item.source,
            item.model,
            f"{item.agreement:.1%}",
            f"{item.low:.1%} to {item.high:.1%}",
            f"{item.num_judged:,}",
            "may be chance" if item.says_nothing else "",
        )
        for item in funnel.reference
    ]
    columns = ("Label agrees with a reference reward model", "Model", "Agreement", "Interval", "Pairs", "")
    return joined(table, markdown_table(columns, asked, right=(2, 3, 4)) if asked else "")


def _suites(funnel: Funnel) -> str:
    """Return how many prompts of each suite were found in the data."""
    rows = [
        (item.suite, f"{item.num_items:,}", f"{item.num_items_found:,}", f"{item.num_rows:,}")
        for item in funnel.contamination
    ]
    columns = ("Suite", "Prompts", "Found in the data", "Rows that have them")
    return markdown_table(columns, rows, right=(1, 2, 3)) if rows else ""
