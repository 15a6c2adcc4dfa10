"""The curves of trainings: reading them, and which of them are drawn. Knows nothing of drawing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from containers.contracts.names import StageName

_REWARD_LOSS_NOTE = (
    "Training lowers this loss: it includes the penalty on mean scores off zero (center_rewards_coefficient) and the "
    "demanded margin (use_margin) where they are set. The log loss under Evaluation includes neither."
)


@dataclass(frozen=True)
class Curves:
    """Curves of one training: `points[name]` holds (step, value), steps rising."""

    points: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    non_finite: tuple[str, ...] = ()

    def get(self, name: str) -> tuple[tuple[int, float], ...]:
        """The curve of that name; empty where none was recorded."""
        return self.points.get(name, ())


def is_of_the_clock(name: str) -> bool:
    """Whether a curve tells of time, and so differs between two runs of the same training."""
    return name.endswith(("_s", "_runtime", "_per_second")) or name == "engine_idle_fraction"


@dataclass(frozen=True)
class CurvePlot:
    """Curves that are drawn in one plot: each with its label and its name in the file."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    note: str = ""


def _both(title: str, name: str, unit: str, note: str = "") -> CurvePlot:
    return CurvePlot(title, unit, (("training", name), ("held out", f"eval_{name}")), note)


def _alone(title: str, name: str, unit: str) -> CurvePlot:
    return CurvePlot(title, unit, ((title, name),))


CURVE_PLOTS: Mapping[StageName, tuple[CurvePlot, ...]] = {
    StageName.TRAIN_SFT: (
        _both("Loss", "loss", "nats per token"),
        _both("Entropy", "entropy", "nats per token"),
    ),
    StageName.TRAIN_REWARD_MODEL: (
        _both("Loss", "loss", "nats per pair", _REWARD_LOSS_NOTE),
        _both("Pairwise accuracy", "accuracy", "share of pairs"),
        _both("Mean margin", "margin", "score"),
        _alone("Gradient norm", "grad_norm", "norm before clipping"),
    ),
    StageName.TRAIN_DPO: (
        _both("Loss", "loss", "per pair"),
        _both("Pairs whose chosen completion gained more", "accuracy", "share of pairs"),
        _both("Margin of the implicit reward", "margin", "beta × log ratio"),
        CurvePlot(
            "Log ratio to the reference",
            "nats per completion",
            (("chosen", "chosen_log_ratio"), ("rejected", "rejected_log_ratio")),
            "Both often fall together. The policy then writes neither; watch the chosen one.",
        ),
        _both("Log ratio of both completions (KL on pairs)", "kl_on_pairs", "nats per completion"),
        _both("Entropy", "entropy", "nats per token"),
    ),
    StageName.TRAIN_POLICY: (
        CurvePlot("Reward", "reward", (("training", "reward"), ("held-out prompts", "evidence_reward"))),
        _alone("KL to the reference", "kl", "nats per completion"),
        _alone("Completion length", "completion_length", "tokens"),
        _alone("Time in which no completions are written", "engine_idle_fraction", "share of the step"),
        _alone("Entropy", "entropy", "nats per token"),
        _alone("Completions that ended by themselves", "ended_fraction", "share of completions"),
        _alone("Prompts on which all rewards were equal", "prompts_without_signal_fraction", "share of prompts"),
        CurvePlot(
            "What the critic expected, and what came",
            "reward",
            (("expected", "critic_value"), ("came", "critic_return")),
            "Mean over tokens. What came is by GAE, so part of it is expected.",
        ),
        _alone("Variance of rewards that the critic explains", "explained_variance", "share"),
    ),
}

# The ends of a reward's curves beside `value_NAME` itself.
_VALUE_STATISTICS = ("_std", "_same_fraction", "_length_correlation")


def curve_plots(stage: StageName, curves: Curves) -> tuple[CurvePlot, ...]:
    """Return the plots of a training, those that tell most first; several rewards have one plot together."""
    plots = CURVE_PLOTS.get(stage, ())
    found = {name.removeprefix("value_"): name for name in curves.points if name.startswith("value_")}
    own = {name: curve for name, curve in found.items() if not _is_statistic(name, found)}
    if stage is not StageName.TRAIN_POLICY or len(own) < 2:
        return plots
    values = CurvePlot("Value of each reward, before its weight", "value", tuple(own.items()))
    return (*plots[:2], values, *plots[2:])


def _is_statistic(name: str, found: Mapping[str, str]) -> bool:
    return any(name.endswith(end) and name.removesuffix(end) in found for end in _VALUE_STATISTICS)


def read_curves(path: Path) -> Curves:
    """Read the curves of `curves.jsonl`. Lines cut short by a kill are skipped; NaN and infinity are kept as text.

    A resumed training writes steps again; the last value of a step counts. No file: no curves.
    """
    points: dict[str, dict[int, float]] = {}
    non_finite: list[str] = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in text.splitlines():
        try:
            event = json.loads(line)
            step, values = int(event["step"]), dict(event.get("values", {}))
            finite = {str(name): float(value) for name, value in values.items()}
            words = {str(name): str(value) for name, value in dict(event.get("non_finite", {})).items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        for name, value in finite.items():
            points.setdefault(name, {})[step] = value
        non_finite += [f"{name} was {value} at step {step}" for name, value in words.items()]
    return Curves(
        points={name: tuple(sorted(by_step.items())) for name, by_step in points.items()}, non_finite=tuple(non_finite)
    )
