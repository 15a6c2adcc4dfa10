"""Time a training step on longer and longer prompts: TRL tuned against packed pairs. Command and page: growth.py."""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.growth_plot import write_plot
from benchmarks.speed_inputs import random_pairs
from benchmarks.speed_table import Runs, alternate, circumstances, median, ratios
from benchmarks.train_speed import (
    MODULE,
    OURS,
    STEP_PAIRS,
    TUNED,
    TokenPair,
    matmul_line,
    matmul_share,
    prepare,
    tokens_computed,
)

PROMPTS = (300, 1000, 3400)
_MIB = 1024**2


@dataclass(frozen=True)
class Length:
    """The measurements of both ways at one length."""

    prompt_tokens: int
    tokens: list[TokenPair]
    runs: Runs

    @property
    def real_tokens(self) -> int:
        """Number of tokens of all pairs; a prompt counts once for each of its answers."""
        return sum(len(a) + len(b) for a, b in self.tokens)

    @property
    def limit(self) -> float:
        """How many times fewer tokens a shared prompt leaves: the largest possible saving."""
        return self.real_tokens / tokens_computed(self.tokens, OURS)

    def microseconds(self, way: str) -> float:
        """Microseconds per real token, median."""
        return median(self.runs[way], "seconds") / self.real_tokens * 1e6


def measured(prompts: Sequence[int], *, answer_tokens: int, rounds: int, plot: Path | None) -> str:
    """Return the table over prompts of these numbers of tokens; draw a plot if a path for it is given."""
    lengths = [_length(tokens, answer_tokens=answer_tokens, rounds=rounds) for tokens in sorted(prompts)]
    if plot is not None:
        _draw(plot, lengths)
    return "\n".join(_table(lengths, answer_tokens=answer_tokens, rounds=rounds))


def _length(prompt_tokens: int, *, answer_tokens: int, rounds: int) -> Length:
    pairs = random_pairs(
        STEP_PAIRS, prompt_tokens=(prompt_tokens, prompt_tokens), answer_tokens=(answer_tokens, answer_tokens)
    )
    with tempfile.TemporaryDirectory(prefix="growth-length-") as name:
        tokens = prepare(Path(name), pairs)
        runs = alternate([TUNED, OURS], module=MODULE, folder=Path(name), rounds=rounds)
    return Length(prompt_tokens, tokens, runs)


def _table(lengths: Sequence[Length], *, answer_tokens: int, rounds: int) -> list[str]:
    losses = max(_spread_of_losses(length.runs) for length in lengths)
    lines = [
        f"One optimizer step on {STEP_PAIRS} pairs, every prompt of so many tokens and every answer of "
        f"{answer_tokens:,}, and the few of the chat template; the model of train_speed.md; {circumstances(rounds)}",
        "Without padding, a shared prompt can save no more than its tokens: the limit, beside the ratio of seconds "
        f"(median, in brackets the least and the most). Losses of one length differ by at most {losses:.1e}.",
        matmul_line({way: [run for length in lengths for run in length.runs[way]] for way in (TUNED, OURS)}),
        "",
        "| prompt, tokens | way | real tokens | seconds, median | share of the matmul rate | µs per real token "
        "| memory added, MiB | token limit | ours is faster |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for length in lengths:
        faster = ratios(length.runs, TUNED, ours=OURS)
        compared = {
            TUNED: f"{length.limit:.2f} | {statistics.median(faster):.2f} ({min(faster):.2f} to {max(faster):.2f})",
            OURS: "|",
        }
        for way, runs in length.runs.items():
            lines.append(
                f"| {length.prompt_tokens:,} | {way} | {length.real_tokens:,} | {median(runs, 'seconds'):.1f} "
                f"| {matmul_share(length.runs, length.tokens, way):.0%} | {length.microseconds(way):,.0f} "
                f"| {median(runs, 'memory') / _MIB:,.0f} | {compared[way]} |"
            )
    return lines


def _spread_of_losses(runs: Runs) -> float:
    losses = [run["loss"] for measured in runs.values() for run in measured]
    return float(max(losses) - min(losses))


def _draw(path: Path, lengths: Sequence[Length]) -> None:
    places = [length.prompt_tokens for length in lengths]
    lines = {way: (places, [length.microseconds(way) for length in lengths]) for way in (TUNED, OURS)}
    limit = {"TRL, tuned,\nby the token limit": (places, [one.microseconds(TUNED) / one.limit for one in lengths])}
    write_plot(path, lines, guide=limit, along="tokens of a prompt", up="µs per real token")
