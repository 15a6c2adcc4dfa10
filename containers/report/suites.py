"""The figures of suites: side by side, each by its parts, and what length does to the scores."""

from collections.abc import Sequence

from containers.contracts.certificate import (
    TEST_SUITE,
    CalibrationByChance,
    Certificate,
    CheckpointChoice,
    SuiteEvaluation,
)
from containers.contracts.outcome import Metric
from containers.document.model import Block, Facts, Note, Quantity, Table, Text, Value, heads
from containers.formatting import interval, number, percent, short_digest

_MAX_PARTS = 60


def suites_table(suites: Sequence[SuiteEvaluation]) -> Table:
    """A row of figures for each suite."""
    columns = heads(
        ("Suite", "suite"), "Score", ("Interval", "interval"), "Minimum", "Prompts", ("Pairs", "pair"),
        ("Pair accuracy", "accuracy"), "Ties", "Left out", ("Mean margin", "margin"), ("Log loss", "log loss"),
        ("Calibration error", "calibration error"), numbers=11,
    )  # fmt: skip
    return Table(columns, tuple(map(_row, suites)), name="suites")


def part_blocks(suite: SuiteEvaluation) -> tuple[Block, ...]:
    """Return what the suite is, its parts, and what could not be used."""
    parts = [
        (Text(metric.name, sub=kind if suite.sections else ""), metric, interval(metric), metric.count)
        for kind, metrics in (("section", suite.sections), ("subset", suite.subsets))
        for metric in metrics[:_MAX_PARTS]
    ]
    blocks: list[Block] = [_facts(suite)]
    if parts:
        blocks.append(Table(heads("Part", "Figure", "Interval", "n", numbers=3), tuple(parts)))
    if suite.missing:
        blocks.append(
            Note(f"This file lacks {', '.join(suite.missing)}: the score is not the published one.", "caveat")
        )
    if suite.left_out_examples:
        blocks.append(Note(f"Left out, for example: {', '.join(suite.left_out_examples)}", "quiet"))
    return tuple(blocks)


def choice_note(certificate: Certificate) -> tuple[Block, ...]:
    """A caveat where the checkpoint was chosen on pairs that also certify it; else nothing."""
    choice = certificate.choice
    if choice is None:
        return ()
    because, advice = "too few prompts are held out for a part that chooses", "Hold out more prompts."
    if choice.by_setting:
        because, advice = "filter_dataset.validation_parts.tune is 0", "Set it above 0."
    return (
        Note(
            f"The best of {choice.num_checkpoints:,} checkpoints was chosen on {choice.num_pairs:,} of these test "
            f"pairs, because {because}. So the accuracy on {TEST_SUITE} may be {optimism_text(choice)}: an "
            f"estimate, the higher the less alike the checkpoints err. {advice}",
            "caveat",
        ),
    )


def optimism_text(choice: CheckpointChoice) -> str:
    """By how much the accuracy may be too high. Example: `about 3.2 points too high (2.3 to 5.5)`."""
    low, high = choice.optimism_range
    return f"about {100 * choice.optimism:.1f} points too high ({100 * low:.1f} to {100 * high:.1f})"


def bare_interval(metric: Metric) -> str:
    """The interval without the unit, for a table whose heading names it."""
    if metric.unit == "fraction" or metric.ci_low is None or metric.ci_high is None:
        return interval(metric)
    return f"{number(metric.ci_low, signed=True)} to {number(metric.ci_high, signed=True)}"


def bare(metric: Metric | None) -> Value:
    """The figure with its interval below it, for a table whose heading names the unit."""
    if metric is None:
        return None
    value = percent(metric.value) if metric.unit == "fraction" else number(metric.value, signed=True)
    return Text(value, sub=bare_interval(metric))


def _row(suite: SuiteEvaluation) -> tuple[Value, ...]:
    return (
        Text(suite.name, sub=suite.title),
        suite.score or "nothing was left",
        interval(suite.score) or None,
        Quantity(suite.minimum_accuracy, "fraction"),
        suite.num_prompts or suite.num_items,
        suite.num_pairs,
        suite.accuracy,
        suite.num_ties,
        suite.num_left_out,
        suite.mean_margin and Quantity(suite.mean_margin.value, ""),
        suite.log_loss and Quantity(suite.log_loss.value, ""),
        bare(suite.expected_calibration_error),
    )


def _by_chance(found: CalibrationByChance | None) -> str:
    """The calibration error with what chance adds, beside a perfect model's on the same pairs."""
    if found is None:
        return ""
    return (
        f"{percent(found.plug_in)} with what chance adds; a perfect model shows {percent(found.perfect_mean)}, up to "
        f"{percent(found.perfect_high)}"
    )


def _facts(suite: SuiteEvaluation) -> Facts:
    reasons = ", ".join(f"{reason.replace('_', ' ')}: {count:,}" for reason, count in suite.left_out_because)
    used = f"{suite.num_items:,}"
    if 0 < suite.num_prompts < suite.num_items:
        used += f", with {suite.num_prompts:,} prompts; the intervals are over prompts"
    return Facts(
        (
            ("Benchmark", suite.title),
            ("Data", " ".join(part for part in (suite.origin, short_digest(suite.digest)) if part)),
            ("Rule", suite.source),
            ("Ties", suite.tie_rule),
            ("Rows read", suite.rows_read),
            ("Rows used", used),
            ("Over-long", suite.num_over_long or ""),
            ("Left out", reasons),
            ("Calibration error", _by_chance(suite.calibration_by_chance)),
            ("Wanted", f"at least {percent(suite.minimum_accuracy)}" if suite.minimum_accuracy is not None else ""),
        )
    )
