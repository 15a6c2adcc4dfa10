"""Score parity: within what the code paths to a score are equal."""

from containers.contracts.certificate import ScoreParity
from containers.document.model import Card, Note, Section, Table, Text, Value, heads
from containers.formatting import margin_share, number, parity_text


def parity_card(parity: ScoreParity) -> Card:
    """Return the largest difference of a margin, and how many orders change."""
    share = parity.margin_difference
    paths = f"scores up to {number(parity.max_difference)} apart on {len(parity.paths)} code paths"
    if share is None:
        return Card("Score parity", "score parity", value=number(parity.max_difference), detail=paths)
    return Card(
        "Score parity",
        "score parity",
        value=margin_share(share),
        interval=f"of a typical margin; {parity.num_orders_changed} of {parity.num_pairs} orders changed",
        detail=paths,
    )


def parity_section(parity: ScoreParity) -> Section:
    """Return the differences of each code path, with the bounds."""
    lead = (
        f"{parity.num_conversations:,} conversations, scored on every code path that a score can take; the reference: "
        f"{parity.reference}. Equal within {parity_text(parity)}. {_parity_bounds(parity)}"
    )
    within, differs = Text("equal within the bounds", tone="good"), Text("differs", tone="bad")
    rows: list[tuple[Value, ...]] = [
        (
            f"{path.name[:1].upper()}{path.name[1:]}",
            path.max_difference,
            margin_share(path.max_margin_difference / parity.typical_margin) if parity.typical_margin else None,
            path.num_orders_changed if parity.num_pairs else None,
            within if parity.allows(path) else differs,
        )
        for path in parity.paths
    ]
    columns = (
        *heads("Code path", "Largest difference", "Of a typical margin", "Orders changed", numbers=3),
        *heads("Verdict"),
    )
    return Section(
        "Score parity", (Note(lead, "lead"), Table(columns, tuple(rows))), anchor="parity", short="Score parity"
    )


def _parity_bounds(parity: ScoreParity) -> str:
    rounding = f"by more than {number(parity.bound)}, which rounding explains ({parity.precision})"
    if parity.margin_bound is None:
        return f"A model gets no certificate if a score differs {rounding}."
    return (
        f"A model gets no certificate if a score differs {rounding}, a margin by more than "
        f"{number(parity.margin_bound)} (typical: {number(parity.typical_margin)}), or if more than "
        f"{parity.orders_bound} of {parity.num_pairs} orders change."
    )
