"""A step on pairs over two ranks, with uneven packs and pairs, has the gradient of one rank; KTO's baseline, too."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = [pytest.mark.stages, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("offline_rank.py")
PROJECT = Path(__file__).resolve().parents[4]
TOLERANCE = 1e-5


def step_over(ranks: int, folder: Path, start: Path, loss: str) -> dict[str, Any]:
    """What a step over so many ranks gives."""
    output, rendezvous = folder / f"{loss}-{ranks}.pt", folder / f"{loss}-{ranks}-rendezvous"
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(ranks), str(rendezvous), str(start), str(output), loss],
            env={**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        for rank in range(ranks)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0] * ranks
    found: dict[str, Any] = torch.load(output)
    return found


@pytest.mark.parametrize("loss", ["sigmoid", "kto"])
def test_two_ranks_compute_the_step_of_one(tmp_path: Path, loss: str) -> None:
    start = save_causal_model(tmp_path / "start", scale=0.1, seed=3)
    one, two = (step_over(ranks, tmp_path, start, loss) for ranks in (1, 2))
    assert len(set(two["packs"])) == 2, "the ranks have as many packs, which proves less"
    assert float((two["gradient"] - one["gradient"]).norm() / one["gradient"].norm()) < TOLERANCE
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-6)
    assert two["figures"] == pytest.approx(one["figures"], rel=1e-5)
