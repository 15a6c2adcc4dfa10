"""Time a training step on longer and longer prompts: TRL at its best, and packed pairs. Command, page: growth.py."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.growth_plot import write_plot
from benchmarks.speed_inputs import random_pairs, save_reward_model
from benchmarks.speed_ratios import CALIBRATION_SEED, Runs, Tried, alternate, in_its_own_process, ratio, tried
from benchmarks.speed_table import circumstances, median
from benchmarks.train_speed import (
    MODULE,
    OURS,
    SETTINGS,
    SORTED,
    STEP_PAIRS,
    TokenPair,
    draw_folder,
    matmul_line,
    matmul_share,
    prepare,
    spread_of_losses,
    tokens_computed,
)

PROMPTS = (300, 1000, 3400)
# All pairs have the same lengths, so draws differ by nothing but letters: one is compared.
_SEED = 1
_MIB = 1024**2


@dataclass(frozen=True)
class Length:
    """The measurements of both ways at one length; TRL's with the setting that is its best there."""

    prompt_tokens: int
    tokens: list[TokenPair]
    runs: Runs
    tried: Tried

    @property
    def peer(self) -> str:
        """TRL's setting."""
        return self.tried.best

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
    lengths = {
        "prompt_tokens": (prompt_tokens, prompt_tokens),
        "answer_tokens": (answer_tokens, answer_tokens),
    }
    with tempfile.TemporaryDirectory(prefix="growth-length-") as name:
        folder = Path(name)
        save_reward_model(folder / "model", data=None)
        for seed in (CALIBRATION_SEED, _SEED):
            tokens = prepare(folder, random_pairs(STEP_PAIRS, seed=seed, **lengths), draw=seed)
        measure = in_its_own_process(MODULE)
        # With one length there is nothing to sort.
        settings = [setting for setting in SETTINGS if not setting.endswith(SORTED)]
        peer = tried(settings, folder=draw_folder(folder, CALIBRATION_SEED), measure=measure)
        folders = {_SEED: draw_folder(folder, _SEED)}
        runs = alternate([peer.best, OURS], folders=folders, rounds=rounds, measure=measure)
    return Length(prompt_tokens, tokens, runs, peer)


def _table(lengths: Sequence[Length], *, answer_tokens: int, rounds: int) -> list[str]:
    losses = max(spread_of_losses(length.runs, length.tried) for length in lengths)
    lines = [
        f"One optimizer step on {STEP_PAIRS} pairs, every prompt of so many tokens and every answer of "
        f"{answer_tokens:,}, and the few of the chat template; the model of train_speed.md; {circumstances(rounds)}",
        "Without padding, a shared prompt can save no more than its tokens: the limit, beside the ratio of seconds "
        f"(median of the rounds, and how far they are apart). TRL has the fastest of 1, 2, 4 and 8 pairs a batch, each "
        f"tried on another draw of that length. Losses of one length differ by at most {losses:.1e}.",
        matmul_line({"all": [run for length in lengths for runs in length.runs.values() for run in runs]}),
        "",
        "| prompt, tokens | way | real tokens | seconds, median | share of the matmul rate | µs per real token "
        "| memory added, MiB | token limit | ours is faster |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for length in lengths:
        faster = ratio(length.runs, length.peer, ours=OURS)
        compared = {
            length.peer: f"{length.limit:.2f} | {faster.median:.2f} ({faster.clock_shown})",
            OURS: "|",
        }
        for way, runs in length.runs.items():
            lines.append(
                f"| {length.prompt_tokens:,} | {way} | {length.real_tokens:,} | {median(runs, 'seconds'):.1f} "
                f"| {matmul_share(length.runs, {_SEED: length.tokens}, way):.0%} | {length.microseconds(way):,.0f} "
                f"| {median(runs, 'memory') / _MIB:,.0f} | {compared[way]} |"
            )
    return lines


def _draw(path: Path, lengths: Sequence[Length]) -> None:
    places = [length.prompt_tokens for length in lengths]
    peers = [length.microseconds(length.peer) for length in lengths]
    lines = {
        "TRL, its best": (places, peers),
        OURS: (places, [length.microseconds(OURS) for length in lengths]),
    }
    least = [taken / length.limit for taken, length in zip(peers, lengths, strict=True)]
    guide = {"TRL, its best,\nby the token limit": (places, least)}
    write_plot(path, lines, guide=guide, along="tokens of a prompt", up="µs per real token")
