"""A look: what the policy writes on held-out prompts, compared by judges with what the trusted one wrote there."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeAlias

from containers.contracts.evidence import EvidencePoint, EvidenceSample
from containers.contracts.outcome import Metric
from containers.contracts.records import Message
from containers.distributed.ranks import of_all_ranks, spread_over_ranks
from containers.evidence.agreement import rank_agreement
from containers.evidence.trust import Tally, look
from containers.judges.base import Pair, StartedJudge, Verdict
from containers.rewards.base import Answered, StartedTerm
from containers.rewards.judging import judge
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt

# Held-out prompts whose answers the report shows at each look.
_SHOWN = 3
# Writes one completion for each of the prompts; the text is a seed.
Write: TypeAlias = Callable[[Any, Sequence[PolicyPrompt], str], list[Completion]]
# Log-ratio of each completion to the start model, in nats.
LogRatios: TypeAlias = Callable[[Any, Sequence[Completion]], list[float]]


@dataclass(frozen=True)
class NamedJudge:
    """A started judge with its name in the configuration."""

    name: str
    started: StartedJudge


@dataclass(frozen=True)
class Written:
    """What a policy wrote on the held-out prompts before any judge saw it.

    Attributes:
        answers: a look writes more of them, if it needs more.
        point: None: it is measured on the answers that the look needed.
        duration_s: what writing and measuring took.
    """

    answers: list[Completion]
    point: EvidencePoint | None
    duration_s: float


@dataclass(frozen=True)
class Compared:
    """What a look found, with the policy's answers."""

    tally: Tally
    others: tuple[tuple[str, float], ...]
    point: EvidencePoint
    answers: list[Completion]
    duration_s: float


@dataclass
class HeldOut:
    """The held-out prompts of a training, and what writes and judges on them. All ranks do the same with it.

    Attributes:
        prompts: each is answered as often as it takes for `2 * num_pairs` answers.
        judges: the one that decides first.
        log_ratios: None where there is no reference.
        num_pairs: of a look, at first.
        opening: what the chat template writes for the policy after a prompt.
        seed: of all answers.
    """

    prompts: Sequence[PolicyPrompt]
    judges: Sequence[NamedJudge]
    rewards: Sequence[StartedTerm]
    write: Write
    log_ratios: LogRatios | None
    num_pairs: int
    opening: str
    seed: int
    _slots: list[PolicyPrompt] = field(init=False)

    def __post_init__(self) -> None:
        self._slots = [self.prompts[place % len(self.prompts)] for place in range(2 * self.num_pairs)]

    def written(self, policy: Any, start: int, end: int, *, step: int) -> list[Completion]:
        """Return the policy's answers with these numbers, the same on every rank.

        Each rank writes its share, with as many calls as every other one: an engine may need all of them.
        """
        slots = list(enumerate(self._slots))[start:end]
        num_ranks = len(of_all_ranks(0))
        missing = -len(slots) % num_ranks
        filled = [*slots, *slots[:missing]]
        seed = f"{self.seed} {step} {start}"
        found = spread_over_ranks(filled, lambda own: self.write(policy, [prompt for _, prompt in own], seed))
        return found[: len(slots)]

    def start(self, policy: Any) -> tuple[EvidencePoint, list[Completion], Metric | None]:
        """Return what the start model writes, and how alike reward and judge order its answers."""
        answers = self.written(policy, 0, len(self._slots), step=0)
        point, rewards = self._point(policy, answers, step=0)
        return point, answers, self._agreement(answers, rewards)

    def begin(self, policy: Any, *, step: int) -> Written:
        """Return what the policy writes before a look: everything, if its judge is one that no stage reaches.

        Such a judge may answer when this policy is gone.
        """
        if not self.judges[0].started.is_elsewhere:
            return Written([], None, 0.0)
        started_at_s = time.monotonic()
        # In the parts in which a look writes them, so that they are the same ones.
        halves = [(0, self.num_pairs), (self.num_pairs, len(self._slots))]
        answers = [one for start, end in halves for one in self.written(policy, start, end, step=step)]
        point, _ = self._point(policy, answers, step=step)
        return Written(answers, point, time.monotonic() - started_at_s)

    def compare(self, policy: Any, trusted: Sequence[Completion], written: Written, *, step: int) -> Compared:
        """Compare the policy with the answers of the trusted one.

        Raises:
            JudgeAwaitedError: no stage reaches the judge that decides, and it has not judged these pairs yet.
        """
        started_at_s = time.monotonic()
        answers = written.answers
        others: list[list[Verdict]] = [[] for _ in self.judges[1:]]

        def judged(start: int, end: int) -> Tally:
            if len(answers) < end:
                answers.extend(self.written(policy, start, end, step=step))
            pairs = [
                Pair(self._answered(place, answers[place]), self._answered(place, trusted[place]))
                for place in range(start, end)
            ]
            decider, *further = (_verdicts(one.started, pairs) for one in self.judges)
            for known, more in zip(others, further, strict=True):
                known.extend(more)
            return _tally(decider)

        tally = look(judged, num_pairs=self.num_pairs)
        point = written.point or self._point(policy, answers, step=step)[0]
        return Compared(
            tally=tally,
            others=tuple(
                (one.name, rate)
                for one, verdicts in zip(self.judges[1:], others, strict=True)
                if (rate := _win_rate(verdicts)) is not None
            ),
            point=point,
            answers=answers,
            duration_s=written.duration_s + time.monotonic() - started_at_s,
        )

    def completed(self, policy: Any, answers: list[Completion], *, step: int) -> list[Completion]:
        """Return all answers of a policy of which a look has the first."""
        if len(answers) == len(self._slots):
            return answers
        return [*answers, *self.written(policy, len(answers), len(self._slots), step=step)]

    def _answered(self, place: int, completion: Completion) -> Answered:
        return Answered.of(self._slots[place], completion, opening=self.opening)

    def _point(self, policy: Any, answers: Sequence[Completion], *, step: int) -> tuple[EvidencePoint, list[float]]:
        asked = [self._answered(place, completion) for place, completion in enumerate(answers)]
        rewards = list(judge(self.rewards, asked).totals)
        samples = tuple(
            EvidenceSample(
                prompt=tuple(Message.model_validate(turn) for turn in prompt.conversation),
                answer=completion.text,
                reward=reward,
            )
            for prompt, completion, reward in list(zip(self._slots, answers, rewards, strict=False))[:_SHOWN]
        )
        point = EvidencePoint(
            step=step,
            reward=fmean(rewards),
            length=fmean(len(answer.completion_ids) for answer in answers),
            kl=self._mean_kl(policy, answers) if step else 0.0,
            samples=samples,
        )
        return point, rewards

    def _mean_kl(self, policy: Any, answers: Sequence[Completion]) -> float | None:
        log_ratios = self.log_ratios
        if log_ratios is None:
            return None
        found: list[float] = spread_over_ranks(answers, lambda own: log_ratios(policy, own))
        return fmean(found)

    def _agreement(self, answers: Sequence[Completion], rewards: Sequence[float]) -> Metric | None:
        """Return the rank correlation on one answer to each prompt; None where the judge gives no values."""
        places = range(min(len(self.prompts), len(answers)))
        asked = [self._answered(place, answers[place]) for place in places]
        verdicts = self.judges[0].started.verdicts([Pair(one, one) for one in asked])
        known = [(place, verdict.values[0]) for place, verdict in zip(places, verdicts, strict=True) if verdict.values]
        return rank_agreement([rewards[place] for place, _ in known], [value for _, value in known])


def _verdicts(judge: StartedJudge, pairs: Sequence[Pair]) -> list[Verdict]:
    return judge.verdicts(pairs) if judge.is_elsewhere else spread_over_ranks(pairs, judge.verdicts)


def _tally(verdicts: Sequence[Verdict]) -> Tally:
    points = [verdict.points for verdict in verdicts]
    return Tally(wins=points.count(1.0), ties=points.count(0.5), losses=points.count(0.0), untold=points.count(None))


def _win_rate(verdicts: Sequence[Verdict]) -> float | None:
    points = [verdict.points for verdict in verdicts if verdict.points is not None]
    return fmean(points) if points else None
