"""Win rates of arms over each other as tables, and which arm they show to be better."""

from collections.abc import Sequence

from containers.arms.records import REWARDS, START, ArmCell, JudgedArms, PolicyComparison
from containers.contracts.outcome import Metric
from containers.document.model import Block, Column, Fold, Note, Section, Table, Text, Tone, Value, heads
from containers.formatting import interval, listed, percent, quantity

_MATRIX = (
    "Each cell: the share of pairs of completions that the arm of the row wins against the arm of the column, a tie "
    "counted half, with its interval over prompts. Green or red: better or worse beyond chance, corrected for the "
    "number of cells of all judges (Holm), and with every seed."
)


def deciding_judge(comparison: PolicyComparison) -> JudgedArms | None:
    """The first judge that can judge; the rewards only where there is no other."""
    usable = [judge for judge in comparison.judges if not judge.problem and judge.cells]
    return next((judge for judge in usable if judge.name != REWARDS), usable[0] if usable else None)


def best_arm(judge: JudgedArms) -> str:
    """The arm that is shown to be better than each other; empty: none is."""
    arms = dict.fromkeys(name for cell in judge.cells for name in (cell.arm, cell.other))
    wins = {arm: sum(cell.better == arm for cell in judge.cells) for arm in arms}
    return next((arm for arm, count in wins.items() if count == len(arms) - 1 and arm != START), "")


def unbeaten(judge: JudgedArms, arms: Sequence[str]) -> tuple[str, ...]:
    """The arms that no other is shown to be better than."""
    beaten = {(cell.other if cell.better == cell.arm else cell.arm) for cell in judge.cells if cell.better}
    return tuple(arm for arm in arms if arm not in beaten)


def comparison_blocks(comparison: PolicyComparison) -> tuple[Block, ...]:
    """Return who judged, and a matrix for each judge."""
    prompts = f"{comparison.num_prompts:,} held-out prompts"
    if comparison.completions_per_prompt > 1:
        prompts += f" with {comparison.completions_per_prompt} completions each"
    lead = Note(f"{prompts}. {_MATRIX}", "lead", (("win rate", "win rate"),))
    return (lead, *(block for judge in comparison.judges for block in _shown(judge, comparison)))


def _shown(judge: JudgedArms, comparison: PolicyComparison) -> tuple[Block, ...]:
    """The judge's matrix; that of the rewards is folded beside another judge's."""
    blocks = _judge_blocks(judge, comparison.arms)
    if judge.name != REWARDS or deciding_judge(comparison) is judge:
        return blocks
    return (Fold("By the rewards", blocks),)


def _judge_blocks(judge: JudgedArms, arms: Sequence[str]) -> tuple[Block, ...]:
    notes = []
    if judge.trained and judge.name != REWARDS:
        notes.append(
            f"{judge.name} took part in the training of {listed(judge.trained)}: its word for them is no evidence."
        )
    if judge.problem:
        notes.append(f"{judge.name} is no judge here: {judge.problem}.")
    if judge.num_untold:
        notes.append(f"{judge.name} could not tell about {judge.num_untold:,} pairs.")
    title = "By the rewards" if judge.name == REWARDS else f"By {judge.name}"
    return (
        Section(title, (Note(f"{judge.shown[:1].upper()}{judge.shown[1:]}.", "quiet"), _matrix(judge, arms))),
        *(Note(text, "caveat") for text in notes),
    )


def _matrix(judge: JudgedArms, arms: Sequence[str]) -> Table:
    cells = {(cell.arm, cell.other): cell for cell in judge.cells}
    values = {value.arm: value for value in judge.values}
    means = (Column("Right" if judge.is_outcome else "Mean value", is_number=True),) if values else ()
    rows = tuple(
        (
            arm,
            *((_value(values[arm].value, values[arm].by_seed) if arm in values else None,) if values else ()),
            *(_cell(cells.get((arm, other)), cells.get((other, arm))) for other in arms),
        )
        for arm in arms
    )
    return Table((*heads(judge.name), *means, *heads(*(f"over {arm}" for arm in arms), numbers=len(arms))), rows)


def _value(metric: Metric, by_seed: Sequence[tuple[int, float]]) -> Value:
    spread = ""
    if len(by_seed) > 1:
        rates = [quantity(rate, metric.unit) for _, rate in by_seed]
        spread = f"; by seed {', '.join(rates)}"
    return Text(quantity(metric.value, metric.unit), sub=f"{interval(metric)}{spread}")


def _cell(own: ArmCell | None, other: ArmCell | None) -> Value:
    """The win rate of the row's arm; `other` is the same cell seen from the column."""
    cell = own or other
    if cell is None:
        return None
    rate, low, high = cell.win_rate.value, cell.win_rate.ci_low, cell.win_rate.ci_high
    by_seed = [value for _, value in cell.by_seed]
    if own is None:
        rate, by_seed = 1 - rate, [1 - value for value in by_seed]
        low, high = (None if high is None else 1 - high), (None if low is None else 1 - low)
    seen = cell.win_rate.model_copy(update={"value": rate, "ci_low": low, "ci_high": high})
    tone: Tone | None = ("good" if rate > 0.5 else "bad") if cell.is_shown else None
    seeds = f"; by seed {', '.join(map(percent, by_seed))}" if len(by_seed) > 1 else ""
    return Text(percent(rate), sub=f"{interval(seen)}{seeds}", tone=tone)
