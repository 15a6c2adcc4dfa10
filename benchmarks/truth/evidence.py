"""What is published of a policy whose reward is optimised too far, by the rule of train_policy.evidence.

`python -m benchmarks.truth.evidence --write` writes docs/proofs/evidence.md. The decisions are those of the product
(`containers.evidence`); the world is `benchmarks.truth.optimised_reward`. The control climbs the gold reward itself, up
to where the other training is best: there nothing is wrong, and every stop is false.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from benchmarks.provenance import commit, when_and_where
from benchmarks.truth.optimised_reward import (
    DIMENSIONS,
    LABEL_NOISE,
    Moment,
    Value,
    climb,
    gold_reward,
    reward_model,
    standardised,
)
from containers.contracts.configs.parts.evidence import LOOKS_OF_A_RUN, EvidenceSettings
from containers.contracts.evidence import EvidencePoint, MeterLimit
from containers.evidence.looks import Compared
from containers.evidence.progress import Progress
from containers.evidence.trust import Tally, look

_PAGE = Path(__file__).resolve().parents[2] / "docs/proofs/evidence.md"
NUM_SEEDS, NUM_STEPS = 24, 160
_NUM_MODELS = 4
# Of the best gold reward, so much must be published.
_ENOUGH = 0.9


@dataclass(frozen=True)
class World:
    """One seed: its gold reward, the reward model that is climbed, and further ones for a meter.

    Attributes:
        start, best, last: gold reward of the start model, at best, and at the last step of the training.
        peak: the step at which it is best.
    """

    seed: int
    gold: Value
    reward: Value
    ensemble: tuple[Value, ...]
    start: float
    best: float
    last: float
    peak: int

    def share(self, gold: float) -> float:
        """Return which share of the best gain over the start model that gold reward is."""
        return (gold - self.start) / (self.best - self.start)


def world(seed: int, *, num_models: int = 1) -> World:
    """Make the world of that seed, and train once to the end."""
    gold = gold_reward(seed)
    models = tuple(reward_model(gold, seed=10 * seed + number) for number in range(1, 1 + num_models))
    course = [moment.gold for moment in climb(models[0], gold, seed=seed, num_steps=NUM_STEPS)]
    peak = max(range(len(course)), key=course.__getitem__)
    ensemble = models if num_models > 1 else ()
    return World(seed, gold, models[0], ensemble, course[0], course[peak], course[-1], peak)


@dataclass(frozen=True)
class Outcome:
    """What a training published, by step and gold reward; when it was ended early, and how often it was looked at."""

    step: int
    gold: float
    ended_at: int | None
    num_looks: int


@dataclass
class _Judge:
    """Compares answers of the policy with those of the trusted one, which are drawn once, as the product does.

    Attributes:
        value: by which it judges, in units of the gold reward.
    """

    value: Value
    seed: int
    num_pairs: int
    _generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed + 77)

    def answers(self, mu: torch.Tensor, number: int) -> torch.Tensor:
        """Return answers of a policy."""
        return mu + torch.randn(number, DIMENSIONS, generator=self._generator)

    def tally(self, own: torch.Tensor, trusted: torch.Tensor) -> Tally:
        """Return its verdicts on pairs, with the noise of people's labels."""
        chance = torch.sigmoid((self.value(own) - self.value(trusted)) / LABEL_NOISE)
        wins = int((torch.rand(len(own), generator=self._generator) < chance).sum())
        return Tally(wins=wins, losses=len(own) - wins)


def train(
    found: World, climbed: Value, judge: Value, *, num_steps: int, settings: EvidenceSettings, with_meters: bool = False
) -> Outcome:
    """Train with looks, and return what is published."""
    every, judging = settings.steps or -(-NUM_STEPS // LOOKS_OF_A_RUN), _Judge(judge, found.seed, settings.num_pairs)
    progress, golds, trusted = Progress(settings, judge="gold"), {0: found.start}, torch.zeros(0)
    ensemble = found.ensemble if with_meters else ()
    for moment in climb(climbed, found.gold, seed=found.seed, num_steps=num_steps, ensemble=ensemble):
        golds[moment.step] = moment.gold
        if not moment.step:
            trusted = judging.answers(moment.mu, 2 * settings.num_pairs)
            _set_limits(progress, moment, ensemble)
            continue
        over = progress.meters.take({"completion_length": moment.length, "reward_disagreement": moment.disagreement})
        progress.waiting = progress.waiting or (over[0] if over else "")
        is_due = moment.step % every == 0 or moment.step == num_steps
        if is_due or progress.waiting:
            own = judging.answers(moment.mu, 2 * settings.num_pairs)
            taken = progress.take(
                _compared(judging, own, trusted, moment),
                step=moment.step,
                is_due=is_due,
                is_last=moment.step == num_steps,
            )
            if taken.consequence == "trusted":
                trusted = own
                _set_limits(progress, moment, ensemble)
            if taken.consequence == "ends":
                break
        if is_due:
            progress.meters.muted.clear()
    step = progress.published_step(num_steps)
    return Outcome(step, golds[step], progress.ended_at, len(progress.looks))


def _compared(judge: _Judge, own: torch.Tensor, trusted: torch.Tensor, moment: Moment) -> Compared:
    tally = look(lambda start, end: judge.tally(own[start:end], trusted[start:end]), num_pairs=judge.num_pairs)
    point = EvidencePoint(step=moment.step, reward=0.0, length=0.0)
    return Compared(tally, (), point, [], 0.0)


def _set_limits(progress: Progress, moment: Moment, ensemble: Sequence[Value]) -> None:
    """Set limits as the product does: two deviations of single answers, and twice the disagreement."""
    if ensemble:
        length, apart = moment.length, moment.disagreement
        progress.meters.reset(
            {
                "completion_length": MeterLimit(name="completion_length", start=length, high=length + 2),
                "reward_disagreement": MeterLimit(name="reward_disagreement", start=apart, high=2 * apart),
            }
        )


@dataclass(frozen=True)
class Line:
    """One row of the page, over all seeds.

    Attributes:
        published: share of the best gain, by seed, ascending.
        false_stops: controls that ended before their end.
    """

    name: str
    published: list[float]
    stopped: int
    false_stops: int
    looks: float

    @property
    def enough(self) -> int:
        """Seeds in which at least nine tenths of the best gain are published."""
        return sum(share >= _ENOUGH for share in self.published)


def line(
    name: str,
    worlds: Sequence[World],
    *,
    settings: EvidenceSettings,
    judge: Callable[[World], Value] = lambda found: found.gold,
    with_meters: bool = False,
) -> Line:
    """Return what one way of judging gives."""
    shares, stopped, false_stops, looks = [], 0, 0, 0
    for found in worlds:
        of_run = train(
            found, found.reward, judge(found), num_steps=NUM_STEPS, settings=settings, with_meters=with_meters
        )
        control = train(
            found, found.gold, judge(found), num_steps=found.peak, settings=settings, with_meters=with_meters
        )
        shares.append(found.share(of_run.gold))
        stopped += of_run.ended_at is not None
        false_stops += control.ended_at is not None
        looks += of_run.num_looks
    return Line(name, sorted(shares), stopped, false_stops, looks / len(worlds))


def partial_judge(found: World, *, share: float) -> Value:
    """Return a judge that shares so much of the reward model's taste; as far apart as the gold reward's values."""
    gold, deviation = standardised(found.gold, seed=found.seed), _deviation(found.gold)
    return lambda answers: deviation * ((1 - share) * gold(answers) + share * found.reward(answers))


def _deviation(value: Value) -> float:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return float(value(torch.randn(4000, DIMENSIONS, generator=generator)).std())


def lines(worlds: Sequence[World]) -> Iterator[Line]:
    """Yield the rows of the page; worlds have several reward models."""
    usual = EvidenceSettings()
    shares = sorted(found.share(found.last) for found in worlds)
    yield Line("No looks: the last step", shares, 0, 0, 0.0)
    yield line("A judge that knows the gold reward", worlds, settings=usual)
    yield line("The same, and meters ask for further looks", worlds, settings=usual, with_meters=True)
    yield line("One look without a gain ends it", worlds, settings=usual.model_copy(update={"patience": 1}))
    yield line("A look every 40 steps", worlds, settings=usual.model_copy(update={"steps": 40}))
    for share in (0.25, 0.5, 0.75):
        yield line(
            f"A judge that shares {share:.0%} of the reward model's taste",
            worlds,
            settings=usual,
            judge=lambda found, share=share: partial_judge(found, share=share),  # type: ignore[misc]
        )
    if worlds[0].ensemble:
        yield line(
            "A second reward model that learnt from the same kind of pairs",
            worlds,
            settings=usual,
            judge=lambda found: lambda answers: _deviation(found.gold) * found.ensemble[1](answers),
        )


def table(rows: Sequence[Line], *, num_worlds: int) -> str:
    """Return the rows in Markdown."""
    head = (
        f"| who looks | published: median | worst | at least {_ENOUGH:.0%} | ended early | control ended | looks |\n"
        "|---|---|---|---|---|---|---|"
    )
    body = [
        f"| {row.name} | {median(row.published):.2f} | {row.published[0]:.2f} | {row.enough} of {num_worlds} | "
        f"{row.stopped} | {row.false_stops} | {row.looks:.1f} |"
        for row in rows
    ]
    return "\n".join([head, *body])


def main() -> int:
    """Print the table, and write the page where wanted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="worlds (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write {_PAGE.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured = commit()
    worlds = [world(seed, num_models=_NUM_MODELS) for seed in range(options.seeds)]
    text = table(list(lines(worlds)), num_worlds=len(worlds))
    print(text)
    if options.write:
        page = (
            "# What is published of a policy whose reward is optimised too far\n\n"
            f"    python -m benchmarks.truth.evidence --seeds {options.seeds} --write\n\n"
            f"{when_and_where(measured)}. Simulated: {len(worlds)} worlds of `benchmarks/truth/optimised_reward.py`, "
            f"{NUM_STEPS} steps each. Published: share of the best gain in the gold reward. Control: the gold reward "
            "itself is climbed, so that every stop is false.\n\n"
            f"{text}\n"
        )
        _PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
