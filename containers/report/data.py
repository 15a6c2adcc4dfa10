"""What became of every row: the filter's counts, what the pairs are for, and what was found about the data."""

from collections.abc import Sequence

from containers.contracts.funnel import Funnel, LabelAgreement, SuiteContamination, ValidationPart
from containers.document.model import (
    Beside,
    Block,
    Bullets,
    Facts,
    Fold,
    Note,
    Plots,
    Quantity,
    Section,
    Table,
    heads,
)
from containers.formatting import humanize, percent

_MAX_GROUPS = 12
_MAX_EXAMPLES = 5


def data_blocks(funnel: Funnel, *, beside_prompts: bool = False) -> tuple[Block, ...]:
    """Return the whole story of the rows, from reading to use.

    Args:
        beside_prompts: the run has a prompt set, so the policy gets no prompt of these rows.
    """
    from containers.report.figures import funnel_plot

    plot = funnel_plot(funnel, salt="rows by fate")
    detector = (
        f" The language of the text was checked with {funnel.language_detector}." if funnel.language_detector else ""
    )
    unaccounted = unaccounted_rows(funnel)
    said = data_findings(funnel)
    return (
        Note(f"{funnel.rows_read:,} rows were read from {', '.join(funnel.sources) or 'no source'}.{detector}", "lead"),
        Beside(((Plots((plot,) if plot else ()),), _uses(funnel, beside_prompts=beside_prompts))),
        *((Note(f"{unaccounted:,} {_ADD_UP}", "caveat"),) if unaccounted else ()),
        *((Bullets(said),) if said else ()),
        *_steps(funnel),
    )


_ADD_UP = "rows are neither dropped nor used nor set aside: the records of the filter do not add up."


def data_section(funnel: Funnel, *, beside_prompts: bool = False) -> Section:
    """Return the story of the rows by itself; arguments as `data_blocks`."""
    return Section("What became of every row", data_blocks(funnel, beside_prompts=beside_prompts))


def data_findings(funnel: Funnel) -> tuple[str, ...]:
    """The findings about the data besides the counts, a sentence each."""
    said = [
        f"{item.source}: the label agrees with the scores beside it on {percent(item.agreement)} of "
        f"{item.num_judged:,} rows ({percent(item.low)} to {percent(item.high)}){_undecided(item)}."
        for item in funnel.polarity
    ]
    said += [
        f"{item.source}: the label agrees with the reference reward model {item.model} on {percent(item.agreement)} of "
        f"{item.num_judged:,} pairs ({percent(item.low)} to {percent(item.high)}){_undecided(item)}."
        for item in funnel.reference
    ]
    if funnel.num_near_duplicates is not None:
        said.append(f"{funnel.num_near_duplicates:,} rows nearly repeat another one (near_duplicates.jsonl).")
    if funnel.num_similar_prompts is not None:
        said.append(
            f"{funnel.num_similar_prompts:,} prompts are like another prompt; a split keeps them on one side, unless "
            f"`similar_prompts` is `report`."
        )
    said += [_contamination_text(suite) for suite in funnel.contamination]
    return tuple(said)


def _contamination_text(suite: SuiteContamination) -> str:
    prompts = f"{suite.num_prompts_found:,} of its {suite.num_prompts:,} prompts"
    items = f"{suite.num_items_found:,} of its {suite.num_items:,} items"
    if not suite.num_prompts:
        prompts = items
    elif suite.num_prompts < suite.num_items:
        prompts = f"{prompts} ({items})"
    return f"Suite {suite.suite}: {prompts} are in {suite.num_rows:,} rows (contaminated.jsonl)."


def _undecided(check: LabelAgreement) -> str:
    return ", which says nothing about the sign of the labels" if check.says_nothing else ""


def unaccounted_rows(funnel: Funnel) -> int:
    """Rows read that are neither dropped nor used nor set aside; 0 when the funnel adds up."""
    used = {
        "pairs": funnel.train_pairs + funnel.validation_pairs + funnel.pairs_set_aside_for_policy,
        "prompts": funnel.policy_train_prompts + funnel.policy_eval_prompts + funnel.policy_frozen_prompts,
        "demonstrations": funnel.train_demonstrations + funnel.validation_demonstrations,
    }[funnel.kind]
    return funnel.rows_read - used - sum(step.dropped for step in funnel.steps)


def steps_table(funnel: Funnel) -> Table:
    """Rows in and out of each filter that dropped any."""
    rows = [
        (
            humanize(step.reason),
            step.rows_in,
            step.dropped,
            Quantity(step.dropped / step.rows_in if step.rows_in else None, "fraction"),
            step.rows_out,
        )
        for step in funnel.steps
        if step.dropped
    ]
    columns = heads("Filter", "Rows in", "Dropped", "Share", "Rows out", numbers=4)
    return Table(columns, tuple(rows), name="funnel", empty="Every row passed every filter.")


_PART_USES = {
    "tune": "To choose a checkpoint",
    "test": "To certify the reward model",
    "frozen": "To compare champions",
}


def _part_text(part: ValidationPart) -> str:
    if part.is_test and part.name != "test":
        return f"the same pairs that certify: {part.why_test}"
    return f"{part.num_pairs:,} pairs of {part.num_prompts:,} prompts"


def _uses(funnel: Funnel, *, beside_prompts: bool) -> tuple[Block, ...]:
    if funnel.kind == "prompts":
        return _prompt_uses(funnel)
    if funnel.kind == "demonstrations":
        return _demonstration_uses(funnel)
    of_policy = (
        ("Set aside with the policy's prompts", Quantity(funnel.pairs_set_aside_for_policy, "pairs")),
        ("Policy, training", Quantity(funnel.policy_train_prompts, "prompts")),
        ("Policy, evaluation", Quantity(funnel.policy_eval_prompts, "prompts")),
    )
    uses = Facts(
        (
            ("Reward model, training", Quantity(funnel.train_pairs, "pairs")),
            *((_PART_USES[part.name], _part_text(part)) for part in funnel.validation_parts),
            *(() if beside_prompts else of_policy),
        )
    )
    kept = [(name or "(no domain)", count) for name, count in funnel.kept_by_domain[:_MAX_GROUPS]]
    kept += [(f"preference of strength {strength}", count) for strength, count in funnel.kept_by_strength]
    by_group = (Section("Pairs kept", (Facts(tuple(kept)),)),) if kept else ()
    return (Section("What the pairs are for", (uses,)), *by_group)


def _prompt_uses(funnel: Funnel) -> tuple[Block, ...]:
    frozen = (
        Quantity(funnel.policy_frozen_prompts, "prompts")
        if funnel.policy_frozen_prompts
        else ("those that judge the policy: too few are held out")
    )
    uses = Facts(
        (
            ("Policy, training", Quantity(funnel.policy_train_prompts, "prompts")),
            ("Policy, evaluation", Quantity(funnel.policy_eval_prompts, "prompts")),
            ("To compare champions", frozen),
            ("With a reference answer", Quantity(funnel.num_with_answer, "prompts")),
        )
    )
    return (Section("What the prompts are for", (uses,)), *_kept_by_domain(funnel, "Prompts kept"))


def _demonstration_uses(funnel: Funnel) -> tuple[Block, ...]:
    uses = Facts(
        (
            ("Fine-tuning", Quantity(funnel.train_demonstrations, "conversations")),
            ("To choose a checkpoint", Quantity(funnel.validation_demonstrations, "conversations")),
            ("Answers in all of them", Quantity(funnel.num_answers, "answers")),
        )
    )
    return (Section("What the demonstrations are for", (uses,)), *_kept_by_domain(funnel, "Demonstrations kept"))


def _kept_by_domain(funnel: Funnel, title: str) -> tuple[Section, ...]:
    kept = tuple((name or "(no domain)", count) for name, count in funnel.kept_by_domain[:_MAX_GROUPS])
    return (Section(title, (Facts(kept),)),) if kept else ()


def _steps(funnel: Funnel) -> tuple[Block, ...]:
    idle = ", ".join(humanize(step.reason).lower() for step in funnel.steps if not step.dropped)
    examples = tuple(
        (humanize(step.reason), example) for step in funnel.steps for example in step.examples[:_MAX_EXAMPLES]
    )
    table = (steps_table(funnel), *((Note(f"Dropped nothing: {idle}.", "quiet"),) if idle else ()))
    return (
        Section("Filter by filter", table),
        Beside(tuple((block,) for block in _breakdowns(funnel))),
        *((Fold("Examples of dropped rows", (Table(heads("Filter", "Row"), examples),)),) if examples else ()),
    )


def _breakdowns(funnel: Funnel) -> list[Section]:
    """Dropped rows by domain, language, strength and (for a mixture) source, each with its most frequent reason."""
    kinds = {
        "Domain": [(step.reason, step.dropped_by_domain) for step in funnel.steps],
        "Language": [(step.reason, step.dropped_by_language) for step in funnel.steps],
    }
    if funnel.kind == "pairs":
        kinds["Strength"] = [(step.reason, step.dropped_by_strength) for step in funnel.steps]
    if len(funnel.read_by_source) > 1:
        kinds["Source"] = [(step.reason, step.dropped_by_source) for step in funnel.steps]
    return [section for title, steps in kinds.items() if (section := _breakdown(title, steps))]


def _breakdown(title: str, steps: Sequence[tuple[str, tuple[tuple[str, int], ...]]]) -> Section | None:
    counts: dict[str, dict[str, int]] = {}
    for reason, groups in steps:
        for group, dropped in groups:
            if dropped:
                by_reason = counts.setdefault(group, {})
                by_reason[reason] = by_reason.get(reason, 0) + dropped
    rows = sorted(
        ((group or "(none)", sum(found.values()), _top(found)) for group, found in counts.items()),
        key=lambda row: -row[1],
    )
    if not rows:
        return None
    table = Table((*heads(title, "Dropped", numbers=1), *heads("Most often because")), tuple(rows[:_MAX_GROUPS]))
    more = (Note(f"and {len(rows) - _MAX_GROUPS} more", "quiet"),) if len(rows) > _MAX_GROUPS else ()
    return Section(f"Dropped by {title.lower()}", (table, *more))


def _top(by_reason: dict[str, int]) -> str:
    reason = max(by_reason, key=lambda name: by_reason[name])
    return f"{humanize(reason).lower()} ({by_reason[reason]:,})"
