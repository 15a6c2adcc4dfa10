"""How far each figure on length can be believed: simulated reward models whose bias is known. Numpy only.

`python -m benchmarks.truth.length --runs 100` prints the table. Each run draws prompts with two answers, labels of
people, the scores of a model that adds `bias` standard deviations per doubling of the length, and the edits of drawn
pairs. The figures come from the functions that certificates use. Coverage: how often the interval holds the truth.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from containers.contracts.certificate import PADDING, REPETITION, REWRITING, LengthBias
from containers.contracts.outcome import Metric
from containers.evals.answer_edits import CUTTING, LONGER_WORDING, SHORTER_WORDING
from containers.evals.length_bias import length_bias
from containers.evals.length_effects import EditedPairs, PaddedPair, ScoredEdit
from containers.evals.scored_suite import ScoredPair
from containers.evals.suites.base import Comparison, Intervals, SuiteItem
from tasks.config.gate_rules import effect_rules

BIASES = (-0.3, -0.15, 0.0, 0.15, 0.3)
_BOUND = 0.2
_INTERVALS = Intervals(confidence=0.95, num_bootstrap=200, seed=0)
_NUM_EDITED = 64
_NUM_FOR_TRUTH = 400_000
# Doublings of characters: of a prompt's answers together, and of each answer.
_PROMPT_SPREAD, _ANSWER_SPREAD, _MEAN_DOUBLINGS = 0.8, 0.7, 8.5
# Of content scores: what a prompt adds to both answers, and what the model mistakes.
_PROMPT_SCORE, _MISTAKE = 0.5, 0.8
# SD of an edit's effect that has nothing to do with length, per root of a doubling; half of it is shared by a prompt.
_EDIT_NOISE = 0.25
# SD per doubling that missing content costs.
_CUT_CONTENT = 0.4
# Share of answers with each edit, and the range of its doublings.
_EDITS = {
    PADDING: (1.0, 1.0, 1.4),
    REPETITION: (1.0, 0.9, 1.1),
    LONGER_WORDING: (0.8, 0.05, 0.4),
    SHORTER_WORDING: (0.15, -0.2, -0.03),
    CUTTING: (0.6, -1.4, -0.6),
}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """How labels, quality and length go together.

    Attributes:
        liking: what a doubling of the length is worth to people, in standard deviations of quality.
        quality_with_length: correlation of quality and length among the answers to a prompt.
        punished: what the model rightly takes off for filler and repetition, in its standard deviations per doubling.
    """

    name: str
    liking: float = 0.0
    quality_with_length: float = 0.0
    punished: float = 0.0


WORLDS = (
    World("nothing else"),
    World("people like length", liking=0.6),
    World("better answers are longer", quality_with_length=0.4),
    World("both", liking=0.6, quality_with_length=0.4),
    World("the model punishes filler", punished=0.3),
)


@dataclass(frozen=True)
class Row:
    """A figure in a world: its mean over the runs, what it is taken for, how often its interval holds that.

    Attributes:
        closes: share of runs in which a gate with the bound 0.2 closes; None: no rule is about it.
    """

    world: str
    bias: float
    figure: str
    truth: float
    mean: float
    coverage: float
    closes: float | None


@dataclass(frozen=True)
class _Answers:
    """[N, 2] of N prompts with the better answer first: doublings, score of the content; the model's share of length.

    Attributes:
        per_doubling: score that the model adds per doubling.
        score_std: standard deviation of the model's scores.
    """

    doublings: Floats
    content: Floats
    per_doubling: float
    score_std: float

    @property
    def scores(self) -> Floats:
        """[N, 2] of the model."""
        return self.content + self.per_doubling * self.doublings


def table_rows(*, runs: int, seed: int, num_pairs: int = 300, worlds: Sequence[World] = WORLDS) -> list[Row]:
    """All rows: each world with each bias."""
    return [
        row
        for number, world in enumerate(worlds)
        for bias in BIASES
        for row in _rows(world, bias, runs=runs, num_pairs=num_pairs, seed=seed + 1000 * number)
    ]


def _rows(world: World, bias: float, *, runs: int, num_pairs: int, seed: int) -> Iterator[Row]:
    generator = np.random.default_rng([seed, round(100 * (1 + bias))])
    found = [_measured(generator, world, bias, num_pairs) for _ in range(runs)]
    truths = _truths(np.random.default_rng(seed), world, bias)
    closed = {
        "length slope": [abs(length.standard_slope.value) > _BOUND for length in found if length.standard_slope],
        **{name: [_misses(length, name) for length in found] for name in (PADDING, REPETITION, REWRITING)},
    }
    for name, truth in truths.items():
        metrics = [metric for length in found if (metric := _figure(length, name)) is not None]
        held = [(metric.ci_low or 0.0) <= truth <= (metric.ci_high or 0.0) for metric in metrics]
        closes = float(np.mean(closed[name])) if name in closed else None
        mean = float(np.mean([metric.value for metric in metrics]))
        yield Row(world.name, bias, name, truth, mean, float(np.mean(held)), closes)
    any_missed = [any(not rule.passed for rule in effect_rules(length, _BOUND, "interval")) for length in found]
    yield Row(world.name, bias, "the gate's rule, all edits", bias, math.nan, math.nan, float(np.mean(any_missed)))


def _misses(length: LengthBias, name: str) -> bool:
    return any(not rule.passed for rule in effect_rules(length, _BOUND, "interval") if rule.name.endswith(f" {name}"))


def _figure(length: LengthBias, name: str) -> Metric | None:
    figures = {
        "length slope": length.standard_slope,
        "accuracy without the slope's part": length.controlled_accuracy,
        "accuracy, both sides padded": length.padding.padded_accuracy,
        "order flipped by padding": length.padding.flips,
    }
    return figures[name] if name in figures else length.intervention(name).effect


def _truths(generator: np.random.Generator, world: World, bias: float) -> dict[str, float]:
    """What each figure is taken for: the bias; the accuracy without it; the flips that the bias alone makes."""
    answers = _answers(generator, world, bias, _NUM_FOR_TRUTH)
    of_content = float(np.mean(answers.content[:, 0] > answers.content[:, 1]))
    better, worse = answers.scores.T
    rise = answers.per_doubling * (1 + answers.doublings.max(axis=1) - answers.doublings[:, 1])
    flipped = (worse + rise >= better)[better > worse]
    return {
        "length slope": bias,
        "accuracy without the slope's part": of_content,
        **dict.fromkeys((PADDING, REPETITION, REWRITING, CUTTING), bias),
        "accuracy, both sides padded": of_content,
        "order flipped by padding": float(np.mean(flipped)),
    }


def _answers(generator: np.random.Generator, world: World, bias: float, size: int) -> _Answers:
    own = generator.normal(size=(size, 2))
    together = world.quality_with_length
    quality = together * own + math.sqrt(1 - together**2) * generator.normal(size=(size, 2))
    doublings = _MEAN_DOUBLINGS + _PROMPT_SPREAD * generator.normal(size=(size, 1)) + _ANSWER_SPREAD * own
    of_prompt = _PROMPT_SCORE * generator.normal(size=(size, 1))
    content = quality + of_prompt + _MISTAKE * generator.normal(size=(size, 2))
    wish = 1.5 * ((quality[:, 0] - quality[:, 1]) + world.liking * (doublings[:, 0] - doublings[:, 1]))
    exchanged = generator.random(size) > 1 / (1 + np.exp(-wish))
    order = np.where(exchanged[:, None], [1, 0], [0, 1])
    std, per_doubling = _spread(world, bias)
    return _Answers(
        np.take_along_axis(doublings, order, axis=1), np.take_along_axis(content, order, axis=1), per_doubling, std
    )


def _spread(world: World, bias: float) -> tuple[float, float]:
    """Standard deviation of the scores, and the score per doubling that is `bias` of it: a fixed point."""
    of_content = 1 + _PROMPT_SCORE**2 + _MISTAKE**2
    of_length = _PROMPT_SPREAD**2 + _ANSWER_SPREAD**2
    common = world.quality_with_length * _ANSWER_SPREAD
    std = math.sqrt(of_content)
    for _ in range(100):
        std = math.sqrt(of_content + 2 * bias * std * common + (bias * std) ** 2 * of_length)
    return std, bias * std


def _measured(generator: np.random.Generator, world: World, bias: float, num_pairs: int) -> LengthBias:
    answers = _answers(generator, world, bias, num_pairs)
    lengths = np.round(2**answers.doublings).clip(1, 20_000).astype(int).tolist()
    scores = answers.scores
    pairs = [
        ScoredPair(
            SuiteItem(f"{place}", ({"role": "user", "content": f"{place}"},), ("x" * better, "y" * worse), "all", ()),
            Comparison(0, 1),
            float(scores[place, 0]),
            float(scores[place, 1]),
        )
        for place, (better, worse) in enumerate(lengths)
    ]
    part = replace(answers, doublings=answers.doublings[:_NUM_EDITED], content=answers.content[:_NUM_EDITED])
    edited = EditedPairs(tuple(_edits(generator, world, part)), (), tuple(_padded(generator, world, part)))
    return length_bias(pairs, _INTERVALS, score_std=float(scores.std()), edited=edited)


def _edits(generator: np.random.Generator, world: World, answers: _Answers) -> Iterator[ScoredEdit]:
    for place in range(len(answers.doublings)):
        shared = float(generator.normal())
        for _ in range(2):
            for kind, (share, low, high) in _EDITS.items():
                doublings = float(generator.uniform(low, high))
                if generator.random() < share:
                    content = _content(world, kind, doublings) * answers.score_std
                    noise = _noise(generator, answers, doublings, shared)
                    yield ScoredEdit(kind, f"{place}", answers.per_doubling * doublings + content + noise, doublings)


def _padded(generator: np.random.Generator, world: World, answers: _Answers) -> Iterator[PaddedPair]:
    for place, (scores, own) in enumerate(zip(answers.scores, answers.doublings, strict=True)):
        shared = float(generator.normal())
        padded = []
        for score, length in zip(scores, own, strict=True):
            doublings = 1 + float(own.max() - length)
            content = _content(world, PADDING, doublings) * answers.score_std
            noise = _noise(generator, answers, doublings, shared)
            padded.append(float(score) + answers.per_doubling * doublings + content + noise)
        yield PaddedPair(f"{place}", float(scores[0]), float(scores[1]), padded[0], padded[1])


def _content(world: World, kind: str, doublings: float) -> float:
    """What the edit's content is worth, in standard deviations."""
    if kind in (PADDING, REPETITION):
        return -world.punished * doublings
    return _CUT_CONTENT * doublings if kind == CUTTING else 0.0


def _noise(generator: np.random.Generator, answers: _Answers, doublings: float, shared: float) -> float:
    size = _EDIT_NOISE * answers.score_std * math.sqrt(abs(doublings))
    return size * math.sqrt(0.5) * (shared + float(generator.normal()))


def markdown(rows: Sequence[Row]) -> str:
    """A line for each world and figure, a column for each bias: mean, and how often the gate closes.

    Accuracies and flips are shares, all else is in standard deviations per doubling. `held`: how often the interval
    holds the truth, over all biases.
    """
    lines = [
        f"| world | figure | {' | '.join(f'bias {bias:+.2f}' for bias in BIASES)} | held |",
        "|---|---|" + "---:|" * (len(BIASES) + 1),
    ]
    by_line: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_line.setdefault((row.world, row.figure), []).append(row)
    for (world, figure), found in by_line.items():
        held = float(np.mean([row.coverage for row in found]))
        cells = " | ".join(map(_cell, found))
        lines.append(f"| {world} | {figure} | {cells} | {'' if math.isnan(held) else f'{held:.0%}'} |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    mean = "" if math.isnan(row.mean) else f"{row.mean:+.2f}"
    return ", ".join(filter(None, (mean, "" if row.closes is None else f"closed {row.closes:.0%}")))


def main() -> int:
    """Print the table, and what is drawn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="certificates of each setting (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=300, help="pairs of each certificate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print(
        f"{options.runs} certificates of each setting, {options.pairs} pairs each, {_NUM_EDITED} of them edited; bound "
        f"of the gate {_BOUND:g}, and of the slope's former rule. Seed {options.seed}.\n"
    )
    print(markdown(table_rows(runs=options.runs, seed=options.seed, num_pairs=options.pairs)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
