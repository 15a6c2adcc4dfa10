"""The completions of a step: draw prompts, let the policy complete them on all ranks, and have them rewarded."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch

from containers.contracts.configs.parts.policy_algorithms import MOST_ROUNDS
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.schedule import Minibatches
from containers.distributed.ranks import of_all_ranks
from containers.evidence.meters import distinctness, repetition
from containers.harness.errors import NoSignalError, StageError
from containers.losses.advantages import has_spread
from containers.packing.dealing import dealt
from containers.packing.logps import causal_of
from containers.rewards.base import Answered
from containers.rewards.combine import CombinedRewards
from containers.rewards.policy_reward import PolicyReward, Scored
from containers.rewards.term_curves import term_curves
from containers.rollouts.engines import Writing
from containers.rollouts.generate import Completion, sampled_completions
from containers.rollouts.prompts import PolicyPrompt, PromptOrder
from containers.rollouts.rollout import Rollout, StepBatch


@dataclass(frozen=True)
class Written:
    """One completion with what the reward's terms say about it.

    Attributes:
        prompt: place of its prompt among the training prompts.
        sampling: log-probability of each token by the engine; empty where the policy itself wrote it.
    """

    prompt: int
    completion: Completion
    scored: Scored
    sampling: tuple[float, ...] = ()


@dataclass(frozen=True)
class Rewarded:
    """The completions of a step with their rewards; those of a prompt are adjacent."""

    rows: tuple[Written, ...] = ()
    rewards: CombinedRewards = field(default_factory=lambda: CombinedRewards(*[torch.zeros(0)] * 3))
    rounding: float = 0.0

    def has_signal(self, num_generations: int) -> torch.Tensor:
        """Return [P] bool: the rewards of the prompt's completions differ."""
        groups = (-1, num_generations)
        rewards, takes_part = self.rewards.rewards.view(groups), self.rewards.takes_part.view(groups)
        return has_spread(rewards, takes_part, rounding=self.rounding)

    def of_prompts(self, kept: torch.Tensor, num_generations: int) -> "Rewarded":
        """Return the completions of the prompts for which `kept`, [P] bool, is true."""
        rows = torch.repeat_interleave(kept, num_generations)
        found = self.rewards
        return Rewarded(
            rows=tuple(row for row, is_kept in zip(self.rows, rows.tolist(), strict=True) if is_kept),
            rewards=CombinedRewards(found.rewards[rows], found.takes_part[rows], found.divides[kept]),
            rounding=self.rounding,
        )

    def and_those_of(self, other: "Rewarded", *, at_most: int, num_generations: int) -> "Rewarded":
        """Return both together, the first `at_most` completions."""
        one, two = self.rewards, other.rewards
        return Rewarded(
            rows=(*self.rows, *other.rows)[:at_most],
            rewards=CombinedRewards(
                torch.cat([one.rewards, two.rewards])[:at_most],
                torch.cat([one.takes_part, two.takes_part])[:at_most],
                torch.cat([one.divides, two.divides])[: at_most // num_generations],
            ),
            rounding=max(self.rounding, other.rounding),
        )


@dataclass
class PolicyRollouts:
    """Makes rollouts, with the same number of completions on each rank.

    Attributes:
        opening: what the chat template writes for the policy after a prompt.
        position: prompts drawn so far.
        rows_per_rank: completions of a rank in a rollout.
        order_seed: of the order of its minibatches.
        sampling: as of the engine's `Rollouts`.
        minibatches: how a rollout is divided into updates.
        steps_without_signal: newest rollouts in a row in which no prompt's completions differed in reward.
        newest: the completions of the newest rollout.
        figures: its curves.
        writing_s: seconds in which completions were written in the present step.
        current: the rollout that updates are made from.
    """

    config: TrainPolicyConfig
    prompts: Sequence[PolicyPrompt]
    tokenizer: Any
    reward: PolicyReward
    writing: Writing
    order: PromptOrder | Sequence[int]
    rows_per_rank: int
    rank: int
    num_ranks: int
    order_seed: int = 0
    sampling: Callable[[], list[list[float]]] | None = None
    minibatches: Minibatches = Minibatches()  # noqa: RUF009 - it is frozen
    opening: str = ""
    position: int = 0
    steps_without_signal: int = 0
    newest: Rewarded = field(default_factory=Rewarded)
    figures: dict[str, float] = field(default_factory=dict)
    writing_s: float = 0.0
    current: Rollout | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of prompts and completions of the newest batch, each prompt once for each of its completions."""
        written = [row.completion for row in self.newest.rows]
        return sum(len(one.prompt_ids) + len(one.completion_ids) for one in written)

    def next_batch(self, policy: Any) -> StepBatch:
        """Return the completions of the next rollout, the same on every rank but for the rank's own; `figures` is new.

        Raises:
            DivergedError: nothing can be sampled from the policy's logits, or a score is not finite.
            NoSignalError: many rounds for one step, or many steps, give no prompt whose completions differ in reward.
        """
        siblings = self.config.num_generations
        drawn = self._drawn(policy)
        signal = drawn.has_signal(siblings)
        written, rounds = self._refilled(policy, drawn) if self.config.method.refill else (drawn, 1)
        # The rows of a minibatch are dealt to the ranks when it is made.
        self.newest = self._dealt(written) if self.minibatches.updates == 1 else written
        batch = self._batch(self.newest)
        figures = self._figures(self.newest, batch)
        if siblings > 1:
            # Of what was drawn first, before any refill.
            figures["prompts_without_signal_fraction"] = 1.0 - float(signal.float().mean())
            self._count_without_signal(any_signal=bool(signal.any()))
        self.figures = figures | ({"rounds": float(rounds)} if self.config.method.refill else {})
        return batch

    def use(self, batch: StepBatch, *, step: int, policy: str) -> Rollout:
        """Make the newest completions, for which a step has been prepared, the present rollout; for all ranks.

        Args:
            step: updates so far.
            policy: digest of the weights that wrote them.
        """
        if self.minibatches.updates > 1:
            written = [row.completion for row in self.newest.rows]
            batch = batch.gathered(
                [list(one.prompt_ids) for one in written], [list(one.completion_ids) for one in written]
            )
        seed = f"{self.order_seed} {self.position}"
        self.current = Rollout(batch, self.minibatches, seed, self.rank, self.num_ranks, step=step, policy=policy)
        return self.current

    def _dealt(self, written: Rewarded) -> Rewarded:
        """Return the groups in an order that gives each rank about as many tokens to learn from; all ranks call it."""
        siblings = self.config.num_generations
        groups = [written.rows[start : start + siblings] for start in range(0, len(written.rows), siblings)]
        order = dealt([*map(_num_tokens, groups)], num_ranks=self.num_ranks)
        if order is None or self.num_ranks == 1:
            return written
        at = torch.tensor([group * siblings + place for group in order for place in range(siblings)])
        found = written.rewards
        return Rewarded(
            rows=tuple(row for group in order for row in groups[group]),
            rewards=CombinedRewards(found.rewards[at], found.takes_part[at], found.divides[torch.tensor(order)]),
            rounding=written.rounding,
        )

    def _refilled(self, policy: Any, drawn: Rewarded) -> tuple[Rewarded, int]:
        """Return a step of prompts whose outcomes differ, and how many rounds it took.

        After the last round, prompts of that round without a difference fill the step: they have no advantage.
        """
        siblings, wanted = self.config.num_generations, len(drawn.rows)
        kept, rounds = Rewarded(), 0
        while True:
            rounds += 1
            tells = drawn.has_signal(siblings) & drawn.rewards.divides
            more = drawn.of_prompts(tells, siblings)
            kept = kept.and_those_of(more, at_most=wanted, num_generations=siblings) if kept.rows else more
            if len(kept.rows) == wanted:
                return kept, rounds
            if rounds == MOST_ROUNDS:
                break
            drawn = self._drawn(policy)
        if not kept.rows:
            raise NoSignalError(self._not_filled(wanted // siblings))
        rest = drawn.of_prompts(~tells, siblings)
        return kept.and_those_of(rest, at_most=wanted, num_generations=siblings), rounds

    def _drawn(self, policy: Any) -> Rewarded:
        """Return rewarded completions of the next prompts, of all ranks."""
        siblings, first = self.config.num_generations, self.position
        rows = range(self.rank * self.rows_per_rank, (self.rank + 1) * self.rows_per_rank)
        places = [self.order[first + row // siblings] for row in rows]
        self.position += self.rows_per_rank * self.num_ranks // siblings
        began_s = time.perf_counter()
        completions = self.written(policy, places)
        self.writing_s += time.perf_counter() - began_s
        asked = [self.answered(place, completion) for place, completion in zip(places, completions, strict=True)]
        told = self._said(completions)
        own = [Written(*row) for row in zip(places, completions, self.reward.scored(asked), told, strict=True)]
        everywhere = tuple(row for part in of_all_ranks(own) for row in part)
        scored = [row.scored for row in everywhere]
        rewards = self.reward.combined(scored, [row.completion for row in everywhere])
        return Rewarded(everywhere, rewards, self.reward.rounding(scored))

    def _said(self, completions: Sequence[Completion]) -> list[tuple[float, ...]]:
        """Return what the engine says of each token of these completions, which it has just written."""
        if self.sampling is None:
            return [()] * len(completions)
        said = self.sampling()
        if len(said) != len(completions):
            raise StageError(
                f"the engine says the probabilities of {len(said)} completions, and wrote {len(completions)}"
            )
        rows = [tuple(row[: len(one.completion_ids)]) for row, one in zip(said, completions, strict=True)]
        if short := [place for place, row in enumerate(rows) if len(row) != len(completions[place].completion_ids)]:
            raise StageError(f"the engine says no probability of some tokens of completion {short[0] + 1}")
        return rows

    def answered(self, place: int, completion: Completion) -> Answered:
        """Return a completion of that training prompt, as rewards see it."""
        prompt = self.prompts[place]
        return Answered.of(prompt, completion, opening=self.opening)

    def written(self, policy: Any, places: Sequence[int]) -> list[Completion]:
        """Return one completion by the policy for each of these prompts."""
        # A program of its own queues what does not fit; the others hold all at once, so they get one minibatch after
        # another.
        parts = 1 if self.sampling is not None else self.minibatches.per_epoch
        at_a_time = -(-len(places) // parts)
        with self.writing(policy):
            return [
                completion
                for start in range(0, len(places), at_a_time)
                for completion in sampled_completions(
                    causal_of(policy),
                    self.tokenizer,
                    [self.prompts[place].token_ids for place in places[start : start + at_a_time]],
                    max_new_tokens=self.config.max_completion_length,
                    temperature=self.config.temperature,
                )
            ]

    def _batch(self, step: Rewarded) -> StepBatch:
        first = self.rank * self.rows_per_rank
        own = step.rows[first : first + self.rows_per_rank]
        return StepBatch(
            prompts=[list(row.completion.prompt_ids) for row in own],
            completions=[list(row.completion.completion_ids) for row in own],
            first_row=first,
            rewards=step.rewards.rewards,
            lengths=torch.tensor([len(row.completion.completion_ids) for row in step.rows]),
            ended=torch.tensor([row.completion.ended for row in step.rows]),
            takes_part=step.rewards.takes_part,
            divides=step.rewards.divides,
            rounding=step.rounding,
            sampling=[torch.tensor(row.sampling) for row in own if row.sampling],
        )

    def _figures(self, step: Rewarded, batch: StepBatch) -> dict[str, float]:
        """Return the curves of the step's completions; rewards are those of completions that take part."""
        part, siblings = batch.takes_part, self.config.num_generations
        found = {
            "completion_length": float(batch.lengths.float().mean()),
            "ended_fraction": sum(row.completion.ended for row in step.rows) / len(step.rows),
            "identical_completions_fraction": self._identical_share(step),
            "repeated_phrases_fraction": fmean(repetition(row.completion.completion_ids) for row in step.rows),
            "distinct_phrases_fraction": distinctness(row.completion.completion_ids for row in step.rows),
            **term_curves(self.reward, [row.scored for row in step.rows], batch.lengths),
        }
        if apart := [row.scored.disagreement for row in step.rows if row.scored.disagreement is not None]:
            found["reward_disagreement"] = fmean(apart)
        if part.any():
            groups = [batch.rewards[part]]
            if siblings > 1:
                parts = zip(batch.rewards.view(-1, siblings), part.view(-1, siblings), strict=True)
                groups = [rewards[has] for rewards, has in parts]
            spreads = [float(group.std()) for group in groups if len(group) > 1]
            found["reward"] = float(batch.rewards[part].mean())
            found["reward_std"] = sum(spreads) / len(spreads) if spreads else 0.0
        return found

    def _identical_share(self, step: Rewarded) -> float:
        """Return the share of completions whose text another completion of the same prompt has."""
        texts = Counter((row.prompt, row.completion.text) for row in step.rows)
        return sum(count for count in texts.values() if count > 1) / len(step.rows)

    def _count_without_signal(self, *, any_signal: bool) -> None:
        """Count steps in a row without signal; stop at the configured number."""
        self.steps_without_signal = 0 if any_signal else self.steps_without_signal + 1
        if self.steps_without_signal < self.config.max_steps_without_signal:
            return
        most = self.reward.unscorable.most_common(1)
        why = f" Completions without a value: {most[0][1]:,} because `{most[0][0]}`." if most else ""
        raise NoSignalError(
            f"in {self.steps_without_signal} steps in a row (train_policy.max_steps_without_signal), all completions "
            f"of each prompt had the same reward, so they taught the policy nothing.{why} The prompts are too hard or "
            "too easy for this policy, or the rewards cannot tell its completions apart. Use other prompts, more "
            "num_generations, another reward, or a start model that solves some of them."
        )

    def _not_filled(self, wanted: int) -> str:
        return (
            f"{MOST_ROUNDS} rounds of {wanted} prompts gave none whose completions differ in their reward "
            f"(train_policy.parts.refill of {self.config.algorithm}). The rewards tell nothing about these prompts: "
            "they are too hard for this policy, or it solves them all. Use other prompts, more num_generations, "
            "another reward, fewer steps, or set parts.refill to false."
        )


def _num_tokens(siblings: Sequence[Written]) -> int:
    """Tokens of completions of one prompt, and of the prompt once."""
    return len(siblings[0].completion.prompt_ids) + sum(len(row.completion.completion_ids) for row in siblings)
