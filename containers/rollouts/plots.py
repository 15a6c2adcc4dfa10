"""Figures of the policy evaluation as PNG files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from containers.rollouts.comparison import ComparedPrompt

_POLICY, _REFERENCE = "#2a6f97", "#b0b7bf"


def write_policy_plots(prompts: Sequence[ComparedPrompt], folder: Path) -> None:
    """Write `rewards.png`, `reward_differences.png`, `kl_and_reward.png` and `lengths.png` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _overlaid(
        [reward for prompt in prompts for reward in prompt.rewards_policy],
        [reward for prompt in prompts for reward in prompt.rewards_reference],
        folder / "rewards.png",
        label="Reward-model score",
    )
    _overlaid(
        [float(len(item.completion_ids)) for prompt in prompts for item in prompt.policy],
        [float(len(item.completion_ids)) for prompt in prompts for item in prompt.reference],
        folder / "lengths.png",
        label="Length of the completion, tokens",
    )
    _differences([prompt.reward_difference for prompt in prompts], folder / "reward_differences.png")
    _kl_and_reward(prompts, folder / "kl_and_reward.png")


def _overlaid(policy: Sequence[float], reference: Sequence[float], path: Path, *, label: str) -> None:
    """Both distributions in the same bins."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    edges = np.histogram_bin_edges([*policy, *reference], bins=30).tolist()
    axes.hist(reference, bins=edges, color=_REFERENCE, label="reference")
    axes.hist(policy, bins=edges, color=_POLICY, alpha=0.65, label="policy")
    axes.set(xlabel=label, ylabel="Completions")
    axes.legend(frameon=False)
    _save(figure, path)


def _differences(values: Sequence[float], path: Path) -> None:
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.hist(values, bins=24, color=_POLICY)
    axes.axvline(0, color="black", linewidth=1)
    axes.axvline(float(np.mean(values)), color="#d1495b", linewidth=1.5, label=f"mean {np.mean(values):+.3f}")
    axes.set(xlabel="Reward of the policy minus reward of the reference, by prompt", ylabel="Prompts")
    axes.legend(frameon=False)
    _save(figure, path)


def _kl_and_reward(prompts: Sequence[ComparedPrompt], path: Path) -> None:
    """Whether reward was bought with distance from the reference."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    log_ratios = [float(np.mean(prompt.log_ratios)) for prompt in prompts]
    axes.scatter(log_ratios, [prompt.reward_difference for prompt in prompts], s=14, color=_POLICY, alpha=0.7)
    axes.axhline(0, color="black", linewidth=1)
    axes.set(xlabel="log policy − log reference of the policy's completions, nats", ylabel="Reward difference")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    # Without the version of matplotlib in it, the same figures give the same bytes.
    figure.savefig(path, dpi=130, metadata={"Software": None})
