"""PPO in minibatches over two ranks has the gradients of one rank, of policy and critic."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = [pytest.mark.stages, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("ppo_rank.py")
PROJECT = Path(__file__).resolve().parents[4]
TOLERANCE = 1e-5


def updates_over(ranks: int, folder: Path, start: Path) -> list[Any]:
    """What the updates of a rollout over so many ranks give."""
    output, rendezvous = folder / f"{ranks}.pt", folder / f"{ranks}-rendezvous"
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(ranks), str(rendezvous), str(start), str(output)],
            env={**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        for rank in range(ranks)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0] * ranks
    found: list[Any] = torch.load(output)
    return found


def test_two_ranks_compute_the_updates_of_one(tmp_path: Path) -> None:
    start = save_causal_model(tmp_path / "start", scale=0.1, seed=3)
    one, two = (updates_over(ranks, tmp_path, start) for ranks in (1, 2))
    assert len(one) == len(two) == 4
    for ours, theirs in zip(one, two, strict=True):
        for place in (0, 1):
            assert float((ours[place] - theirs[place]).norm() / ours[place].norm()) < TOLERANCE
        assert theirs[2] == pytest.approx(ours[2], rel=1e-4)
