"""What length does to the scores: edits of the same answers, filler against the order, and the slope across answers."""

from collections.abc import Sequence

from containers.contracts.certificate import Certificate, LengthBias
from containers.document.model import Fold, Note, Plot, Plots, Section, Table, Text, Value, heads
from containers.formatting import number
from containers.report.suites import bare

_EDITS_LEAD = (
    "Whether length alone moves a score: the same answer is edited by rule, and scored before and after. Padding puts "
    "filler after it, repetition its own sentences; rewriting puts the same content in more or in fewer words. Both "
    "sides of the drawn pairs are edited, whether their order is right or wrong. A good model may punish filler and "
    "repetition; it rewards neither, and no wording. Cutting removes content, so its effect is quality and length "
    "together. Lengths are in characters."
)
_PADDING_LEAD = (
    "How often filler changes an order: on the rejected side of pairs in the right order; on the lower-scored side of "
    "all drawn pairs, whatever the label; and how many pairs are in the right order with both sides padded to the same "
    "length."
)
_SLOPE_LEAD = (
    "How margin and length go together, given these labels. This describes the pairs and the model; it does not tell a "
    "bias. Where better answers are longer, a model without a bias has a positive slope; where people chose answers "
    "for their length, a negative one."
)


def length_section(certificate: Certificate, plots: tuple[Plot, ...]) -> Section:
    """Return the figures on length, over all suites and for each."""
    each: tuple[tuple[str, LengthBias], ...] = tuple(
        (suite.name, suite.length) for suite in certificate.suites if suite.num_pairs
    )
    together = (("All suites together", certificate.length),)
    rows = (*together, *each) if len(each) > 1 else each
    by_suite = (Fold("The same for each suite", (interventions_table(each),)),) if len(each) > 1 else ()
    blocks = (
        Note(_EDITS_LEAD, "lead", ("length effect",)),
        interventions_table(together if len(each) > 1 else each),
        *by_suite,
        Note(_PADDING_LEAD, "lead", ("padding attack",)),
        padding_table(rows),
        Note(_SLOPE_LEAD, "lead", ("length slope",)),
        slope_table(rows),
        Plots(plots),
    )
    return Section("Length bias", blocks, anchor="length", short="Length bias")


def interventions_table(rows: Sequence[tuple[str, LengthBias]]) -> Table:
    """A row for each suite and edit: what the edit of an answer does to its score."""
    columns = heads(
        "Suite", ("Edit", "length effect"), ("Effect, SD per doubling", "length effect"), "Change, SD",
        "Doublings of the length", "Answers", "Prompts", "Not edited", numbers=6,
    )  # fmt: skip
    found: list[tuple[Value, ...]] = []
    for name, length in rows:
        for edit in length.interventions:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in edit.not_edited_because)
            doublings = None if edit.mean_doublings is None else number(edit.mean_doublings, signed=True)
            found.append(
                (name, edit.name, bare(edit.effect), bare(edit.change), doublings, edit.num_answers, edit.num_prompts,
                 Text(number(edit.num_not_edited), sub=reasons))
            )  # fmt: skip
    return Table(columns, tuple(found))


def padding_table(rows: Sequence[tuple[str, LengthBias]]) -> Table:
    """A row for each suite: how often filler changes the order of a pair."""
    columns = heads(
        "Suite", ("Flipped by padding the rejected side", "padding attack"),
        ("By padding the lower-scored side", "padding attack"), ("Accuracy, both sides padded", "padding attack"),
        "Padded pairs", numbers=4,
    )  # fmt: skip
    found = []
    for name, length in rows:
        padding = length.padding
        room = f"{padding.num_not_padded:,} had no room" if padding.num_not_padded else ""
        figures = (padding.flips, padding.flips_of_either_order, padding.padded_accuracy)
        count = padding.padded_accuracy.count if padding.padded_accuracy else padding.num_pairs
        found.append((name, *map(bare, figures), Text(number(count or 0), sub=room)))
    return Table(columns, tuple(found))


def slope_table(rows: Sequence[tuple[str, LengthBias]]) -> Table:
    """A row for each suite: how margin and length go together, given its labels."""
    columns = heads(
        "Suite", "Score per doubling", ("Length slope, SD per doubling", "length slope"),
        ("Accuracy without its part", "accuracy at equal lengths"), ("Pairs", "pair"), numbers=4,
    )  # fmt: skip
    figures = [(name, (length.slope, length.standard_slope, length.controlled_accuracy)) for name, length in rows]
    pairs = [length.num_pairs for _, length in rows]
    return Table(
        columns, tuple((name, *map(bare, of), count) for (name, of), count in zip(figures, pairs, strict=True))
    )
