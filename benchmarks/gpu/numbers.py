"""Figures of the parts: packed beside padded rows of a start model, and how far curves are apart."""

import json
from pathlib import Path
from typing import Any

import torch

from containers.models.loading import load_causal_model, load_new_reward_model
from containers.selftest.comparison import compared as compared_model


def compared(start: Path, *, device: str, lengths: tuple[int, int], count: int) -> list[dict[str, Any]]:
    """Return what `containers.selftest.comparison.compared` finds of a reward model and of a policy.

    Args:
        start: folder of a causal model.
        lengths, count: as there.
    """
    found: list[dict[str, Any]] = []
    for kind, load in {"reward model": _reward_model, "policy": _policy}.items():
        found += compared_model(kind, load(start), device=device, lengths=lengths, count=count)
    return found


def curves_apart(one: Path, other: Path, *, name: str = "loss") -> list[float]:
    """Return the absolute difference of that curve at each step that both files have."""
    left, right = (_curve(path, name) for path in (one, other))
    return [abs(left[step] - right[step]) for step in sorted(left.keys() & right.keys())]


def first_loss(path: Path) -> float:
    """Return the loss of the first step."""
    curve = _curve(path, "loss")
    return curve[min(curve)]


def _curve(path: Path, name: str) -> dict[int, float]:
    points = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {point["step"]: point["values"][name] for point in points if name in point["values"]}


def _reward_model(start: Path) -> Any:
    return load_new_reward_model(
        start, pad_token_id=0, score_token_id=None, seed=1, dtype=torch.float32, device=torch.device("cpu")
    )


def _policy(start: Path) -> Any:
    return load_causal_model(start, dtype=torch.float32, device=torch.device("cpu"))
