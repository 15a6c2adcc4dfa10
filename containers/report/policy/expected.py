"""What the critic of PPO expected, token by token, in completions of the last step that training kept some of."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.document.model import Plot
from containers.formatting import clean, number, shorten

_COLUMNS = ("step", "completion", "reward", "tokens", "expected")
_SHOWN = 3
# Up to so many tokens have their text below the curve.
_MOST_NAMED = 24
_TOKEN_CHARACTERS, _TEXT_CHARACTERS = 10, 200


@dataclass(frozen=True)
class Expected:
    """A completion with the value before each of its tokens."""

    step: int
    text: str
    reward: float
    tokens: tuple[str, ...]
    values: tuple[float, ...]


def read_expected(path: Path) -> tuple[Expected, ...]:
    """Read up to three completions of the last kept step; empty without a critic, or if the file cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        if not set(_COLUMNS) <= set(parquet.read_schema(path).names):
            return ()
        rows: list[dict[str, Any]] = parquet.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except (OSError, pa.ArrowException):
        return ()
    rows = [row for row in rows if row["expected"] and row["reward"] is not None]
    last = [row for row in rows if row["step"] == rows[-1]["step"]]
    return tuple(
        Expected(row["step"], row["completion"], row["reward"], tuple(row["tokens"]), tuple(row["expected"]))
        for row in last[:_SHOWN]
    )


def expected_plots(found: Sequence[Expected]) -> tuple[Plot, ...]:
    """Return a plot for each: the value before each token, and the reward that came."""
    return tuple(_plot(one, place) for place, one in enumerate(found, start=1))


def _plot(one: Expected, place: int) -> Plot:
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # heavy, and of no use to who only reads

    from containers.document.plot_style import BLUE, INK_2, axes, tick_number

    places = range(1, len(one.values) + 1)
    with axes(2.5, salt=f"expected {place}") as (ax, svg):
        ax.plot(places, one.values, color=BLUE, marker="o" if len(places) <= _MOST_NAMED else None, markersize=3)
        ax.axhline(one.reward, color=INK_2, linewidth=1, linestyle="--")
        ax.set_ylabel("expected reward")
        ax.yaxis.set_major_locator(MaxNLocator(nbins=5))
        ax.yaxis.set_major_formatter(FuncFormatter(tick_number))
        ax.grid(axis="x", visible=False)
        if len(places) <= _MOST_NAMED:
            names = [clean(token.strip()[:_TOKEN_CHARACTERS]) or "␣" for token in one.tokens]
            ax.set_xticks([*places], names, rotation=60, ha="right", fontsize=7)
        else:
            ax.set_xlabel("token")
        first, last = number(one.values[0]), number(one.values[-1])
        return Plot(
            f"Expected at step {one.step:,}, completion {place}",
            svg(),
            note=f"Before the first token {first}, before the last {last}; dashed: the reward that came, "
            f"{number(one.reward)}. It wrote: {shorten(one.text, _TEXT_CHARACTERS)}",
        )
