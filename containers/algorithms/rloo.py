"""TRL's RLOOTrainer with clear curve names, a log of completions, and checks for NaN."""

import math
from collections import defaultdict
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from trl import RLOOTrainer

from containers.contracts.outcome import Metric
from containers.harness.errors import DivergedError
from containers.packing.logps import causal_of
from containers.rewards.base import PolicyReward
from containers.rollouts.completion_log import CompletionLog
from containers.rollouts.engines import Writing
from containers.rollouts.generate import whole_distribution

# TRL's name and this project's name of each curve; other TRL metrics are dropped.
_CURVE_NAMES = {
    "reward": "reward",
    "reward_std": "reward_std",
    "score": "score",
    "kl": "kl_per_token",
    "kl_per_completion": "kl",
    "entropy": "entropy",
    "completions/mean_length": "completion_length",
    "ended_fraction": "ended_fraction",
    "frac_reward_zero_std": "prompts_without_signal_fraction",
    "clip_ratio/region_mean": "ratio_clipped_fraction",
    "step_time": "step_time_s",
}
# Error texts of sampling from logits that are not finite, on a CPU and on a GPU.
_SAMPLING_ERRORS = ("probability tensor contains", "device-side assert")
# Start and end of a curve: the mean over this share of its points.
_END_SHARE = 0.1
# The curves that the manifest has, and their units.
_UNITS = {"reward": "score", "kl": "nats", "completion_length": "tokens", "ended_fraction": "fraction"}


class PolicyTrainer(RLOOTrainer):  # type: ignore[misc]
    """RLOOTrainer that stops at the first number that is not finite; TRL would turn a NaN reward into a zero advantage.

    Completions are sampled with the settings in `arguments` only, none from the model's files.

    Curves: `reward` is what the reward function returned, before the KL; `kl` is the mean over completions of
    log policy − log reference, summed over tokens (nats); `kl_per_token` the same per token.

    Args:
        completion_log: keeps completions at each logging step; None on every rank but the first.
        num_logged_completions: number of completions kept of the newest batch; siblings are adjacent.
        writing: context around each call of the policy's `generate`, chosen by `rollouts.engines`.
        **arguments: as RLOOTrainer; `reward_funcs` is one PolicyReward.
    """

    def __init__(
        self,
        *,
        completion_log: CompletionLog | None,
        num_logged_completions: int,
        writing: Writing = nullcontext,
        **arguments: Any,
    ) -> None:
        self._completion_log = completion_log
        self._num_logged_completions = num_logged_completions
        self._writing = writing
        super().__init__(**arguments)

    def _generate_single_turn(self, *arguments: Any) -> Any:
        try:
            policy = self.accelerator.unwrap_model(self.model)
            with whole_distribution(causal_of(policy)), self._writing(policy):
                return super()._generate_single_turn(*arguments)
        except RuntimeError as error:
            if not any(text in str(error) for text in _SAMPLING_ERRORS):
                raise
            raise DivergedError(self._message("logits are not finite, so nothing can be sampled from them")) from error

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self._metrics["train"]["kl"]:
            self._record_kl()
        self._demand_finite("sum of log-probabilities", float(batch["old_logps"].sum()))
        return batch

    def _record_kl(self) -> None:
        """Record the KL per completion; TRL logs only the mean per token, over the same completions."""
        metrics = self._metrics["train"]
        per_completion = metrics["kl"][-1] * metrics["completions/mean_length"][-1]
        # One value for each of TRL's.
        metrics["kl_per_completion"][len(metrics["kl"]) - 1 :] = [per_completion]
        self._demand_finite("KL to the reference", metrics["kl"][-1])

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, inputs)
        if not torch.isfinite(loss):
            self._demand_finite("loss", float(loss))
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Rename the curves, pass them on, and keep completions."""
        renamed: dict[str, list[float]] = defaultdict(list)
        renamed.update(
            {new: self._metrics["train"][old] for old, new in _CURVE_NAMES.items() if self._metrics["train"][old]}
        )
        self._metrics["train"] = renamed
        super().log(logs, start_time)
        if "reward" in logs and self._completion_log is not None:
            self._completion_log.add(self._newest_completions())

    def _newest_completions(self) -> list[dict[str, Any]]:
        kept = self._logs
        columns = {
            "prompt": kept["prompt"],
            "completion": [completion[-1]["content"] for completion in kept["completion"]],
            "score": kept["extra"]["score"],
            "reward": kept["rewards"][PolicyReward.__name__],
            "advantage": kept["advantages"],
            "num_tokens": kept["extra"]["num_tokens"],
            "ended": kept["extra"]["ended"],
        }
        step = {"step": self.state.global_step}
        rows = [step | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return rows[: self._num_logged_completions]

    def _causal(self, model: Any) -> Any:
        return causal_of(self.accelerator.unwrap_model(model))

    def _demand_finite(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            raise DivergedError(self._message(f"{name} is {value}"))

    def _message(self, found: str) -> str:
        return (
            f"Step {self.state.global_step + 1}: the policy's {found}. Lower train_policy.optimizer.learning_rate, or "
            f"raise train_policy.beta."
        )


def curve_metrics(history: list[dict[str, float]], *, num_steps: int) -> tuple[Metric, ...]:
    """Return reward at start and end, and KL, length and share of ended completions at the end.

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
