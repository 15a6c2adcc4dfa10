"""The training loop of a policy: transformers' Trainer, each step of which makes completions and updates by them."""

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, default_data_collator

from containers.algorithms.policy_rollouts import PolicyRollouts
from containers.algorithms.policy_step import PolicyStep
from containers.contracts.outcome import Metric
from containers.distributed.ranks import of_all_ranks
from containers.harness.errors import DivergedError, StageError
from containers.models.weights import weights_digest
from containers.rollouts.completion_log import CompletionLog
from containers.rollouts.rollout import Rollout
from containers.rollouts.sampling_check import SamplingCheck
from containers.training.sharding import gathered

# Start and end of a curve: the mean over this share of its points.
_END_SHARE = 0.1
# By which beta follows the KL at most, for each horizon of completions.
_MOST_CHANGE = 0.2
# The curves that the manifest has, and their units.
_UNITS = {
    "reward": "score",
    "kl": "nats",
    "completion_length": "tokens",
    "ended_fraction": "fraction",
    "explained_variance": "fraction",
}


class StepNumbers(torch.utils.data.Dataset[dict[str, int]]):
    """Stands for the data of the Trainer: one number for each step and rank. The rollouts draw the prompts."""

    def __init__(self, num_steps: int, *, num_ranks: int) -> None:
        self._length = num_steps * num_ranks

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> dict[str, int]:
        return {"place": place}


class PolicyTrainer(Trainer):  # type: ignore[misc]
    """Trainer whose step is `PolicyStep` on completions from `PolicyRollouts`; it stops at a number that is not finite.

    Curves: `reward` is the mean reward before the KL; `kl` the mean over completions of log policy − log reference,
    summed over tokens (nats); `kl_per_token` the same per token; `ratio_clipped_fraction` the share of tokens whose
    ratio was limited; `engine_idle_fraction` the share of the step's time in which no completions are written;
    `prompts_without_signal_fraction` the share of prompts whose completions have equal rewards.
    `term_curves` says what those of single rewards are.

    Args:
        rollouts: makes the batches.
        make_step: makes the step; takes the Trainer's accelerator.
        sampling_check: follows whether completions come from the policy.
        completion_log: keeps completions at each logging step; None on every rank but the first.
        num_logged_completions: number of completions kept of the newest batch; siblings are adjacent.
        **arguments: as Trainer.
    """

    def __init__(
        self,
        *,
        rollouts: PolicyRollouts,
        make_step: Any,
        completion_log: CompletionLog | None,
        sampling_check: SamplingCheck | None = None,
        num_logged_completions: int,
        **arguments: Any,
    ) -> None:
        super().__init__(data_collator=default_data_collator, **arguments)
        self.rollouts = rollouts
        self.step: PolicyStep = make_step(self.accelerator)
        self._completion_log = completion_log
        self._sampling_check = sampling_check
        self._num_logged_completions = num_logged_completions
        self._figures: dict[str, list[float]] = defaultdict(list)
        # The curves' values at the newest step, and whether it began a rollout.
        self.step_figures: dict[str, float] = {}
        self.is_new_rollout = False
        # Of the rows of a new rollout, where it is known before the update.
        self._surprise: dict[str, float] = {}

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Write a rollout, unless the last one is to be used again, and compute the gradients of one update.

        Raises:
            DivergedError: a log-probability, score or loss is not finite; names the step.
            StageError: no prompt tells the policy anything, in many rounds or steps.
        """
        started_at_s = time.perf_counter()
        self.step_figures = {}
        try:
            rollout = self.rollouts.current
            self.is_new_rollout = rollout is None or rollout.is_used_up
            if rollout is None or rollout.is_used_up:
                rollout = self._written(model)
            batch = rollout.next_batch()
            model.train()
            loss, sums = self.step.update(model, batch)
            if sums["tokens"]:
                self._note_sums(sums, num_completions=len(batch.rewards))
        except (DivergedError, StageError) as error:
            raise type(error)(self._message(str(error), diverged=isinstance(error, DivergedError))) from error
        if self.step.critic is not None:
            self.note(self.step.critic.take_curves())
        if sums["tokens"]:
            self._adapt_beta()
        duration_s = time.perf_counter() - started_at_s
        self.note({"step_time_s": duration_s, "engine_idle_fraction": 1.0 - self.rollouts.writing_s / duration_s})
        self.rollouts.writing_s = 0.0
        if not math.isfinite(float(loss)):
            raise DivergedError(self._message(f"the policy's loss is {float(loss)}", diverged=True))
        return loss

    def compute_largest(self) -> int:
        """Compute forward and backward of the largest pack that completions of full length can make of the prompts.

        Completions get longer while a policy learns, so a run may otherwise end for lack of memory after hours.
        """
        config, rows = self.rollouts.config, self.rollouts.rows_per_rank // self.rollouts.minibatches.per_epoch
        siblings = config.num_generations
        longest = sorted((prompt.token_ids for prompt in self.rollouts.prompts), key=len, reverse=True)
        prompts = [list(longest[row // siblings % len(longest)]) for row in range(rows)]
        known = sorted({token for ids in longest for token in ids})
        # Siblings differ from their first token, so that no part of them is computed once for all.
        completions = [
            [known[(row + place) % len(known)] for place in range(config.max_completion_length)] for row in range(rows)
        ]
        pack = max(self.step.cut(prompts, completions), key=lambda one: one.input_ids.numel())
        self.step.try_pack(self.model_wrapped, pack)
        return int(pack.input_ids.numel())

    def _written(self, model: Any) -> Rollout:
        policy = self.accelerator.unwrap_model(model)
        with gathered(policy):
            batch = self.rollouts.next_batch(policy)
            self.note(self.rollouts.figures)
            self.state.num_input_tokens_seen += self.rollouts.num_tokens
            self._surprise = self.step.prepare(model, batch)
        return self.rollouts.use(batch, step=self.state.global_step, policy=weights_digest(policy))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the curves' means since the last line, and keep completions."""
        means = {name: sum(values) / len(values) for name, values in self._figures.items()}
        self._figures.clear()
        super().log({**logs, **means}, start_time)
        if "completion_length" in means and self.rollouts.current is not None:
            known = self._of_rows(self.rollouts.current)
            if self._completion_log is not None:
                self._completion_log.add(self._newest_completions(known))

    def _of_rows(self, rollout: Rollout) -> list[tuple[float, list[float]]]:
        """Return for the rows of all ranks the advantage, and what a critic expected at each token."""
        batch = rollout.batch
        expected = [row.tolist() for row in batch.values] or [[]] * len(batch.completions)
        known = [*zip(map(_number, batch.advantages), expected, strict=True)]
        return known if rollout.minibatches.updates > 1 else [*chain.from_iterable(of_all_ranks(known))]

    def _newest_completions(self, known: Sequence[tuple[float, list[float]]]) -> list[dict[str, Any]]:
        newest = self.rollouts.newest
        rows = zip(newest.rows, newest.rewards.rewards.tolist(), known, strict=True)
        return [
            {
                "step": self.state.global_step,
                "prompt": list(self.rollouts.prompts[row.prompt].conversation),
                "answer": self.rollouts.prompts[row.prompt].answer,
                "completion": row.completion.text,
                "reward": reward,
                "advantage": advantage,
                "num_tokens": len(row.completion.completion_ids),
                "ended": row.completion.ended,
                "no_value": "; ".join(row.scored.reasons) or None,
                **{f"value_{name}": None if math.isnan(value) else value for name, value in row.scored.values.items()},
                **({"tokens": self._texts(row.completion.completion_ids), "expected": expected} if expected else {}),
            }
            for row, reward, (advantage, expected) in list(rows)[: self._num_logged_completions]
        ]

    def _texts(self, tokens: Sequence[int]) -> list[str]:
        return [self.rollouts.tokenizer.decode([token]) for token in tokens]

    def note(self, figures: dict[str, float]) -> None:
        """Take in curves of the present step."""
        for name, value in figures.items():
            self._figures[name].append(value)
        self.step_figures |= figures

    def _note_sums(self, sums: dict[str, float], *, num_completions: int) -> None:
        """Note the means over all ranks' tokens, and the KL per completion."""
        if self.is_new_rollout and self._surprise.get("surprise_tokens"):
            sums = sums | self._surprise
        parts = of_all_ranks(sums)
        total = {name: sum(part[name] for part in parts) for name in sums}
        tokens = total["tokens"]
        self.note({"entropy": total["entropy"] / tokens, "ratio_clipped_fraction": total["limited"] / tokens})
        self.note({"ratio": total["ratio"] / tokens})
        if self._sampling_check is not None:
            self.note(self._sampling_check.take(total, is_new=self.is_new_rollout))
        if self.step.method.beta:
            self.note({"kl": total["kl"] / num_completions, "kl_per_token": total["kl"] / tokens})

    def _adapt_beta(self) -> None:
        """Let beta follow the KL, once a rollout. Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2."""
        adaptive = self.rollouts.config.adaptive_kl
        if adaptive is None:
            return
        method = self.step.method
        if self.is_new_rollout:
            above = min(max(self.step_figures["kl"] / adaptive.target - 1, -_MOST_CHANGE), _MOST_CHANGE)
            share = len(self.rollouts.newest.rows) / adaptive.horizon
            method = method.model_copy(update={"beta": method.beta * (1 + above * share)})
            self.step = replace(self.step, method=method)
        self.note({"beta": method.beta})

    def _message(self, found: str, *, diverged: bool) -> str:
        cure = " Lower train_policy.optimizer.learning_rate, or raise train_policy.beta." if diverged else ""
        return f"Step {self.state.global_step + 1}: {found.rstrip('.')}.{cure}"


def _number(advantage: Tensor | None) -> float:
    """Return a completion's advantage; the first token's where each has one."""
    return 0.0 if advantage is None else float(advantage[0])


def curve_metrics(history: list[dict[str, float]], *, num_steps: int) -> tuple[Metric, ...]:
    """Return reward at start and end, and KL, length, share of ended completions and what a critic explains at the end.

    Each is the mean over the first or last tenth of the logged points, at least one; `count` is their number.
    """
    points = [entry for entry in history if "reward" in entry]
    tail = max(1, round(len(points) * _END_SHARE))
    wanted = [("reward_start", "reward", points[:tail]), *((f"{curve}_end", curve, points[-tail:]) for curve in _UNITS)]
    metrics = []
    for name, curve, entries in wanted:
        if values := [entry[curve] for entry in entries if curve in entry]:
            mean = sum(values) / len(values)
            metrics.append(Metric(name=name, value=mean, unit=_UNITS[curve], count=len(values)))
    return (*metrics, Metric(name="num_steps", value=num_steps, unit="steps"))
