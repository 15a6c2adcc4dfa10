"""Two runs at once: stages that both want are made once; a second run of the same name is refused while one lives."""

import os
import signal
import socket
from pathlib import Path

import pytest
from short_runs import end, read_until, rlhf, start, wait_for_log

pytestmark = [pytest.mark.slow, pytest.mark.stages]

STAGES = ("filter_dataset", "build_base_model", "train_sft", "train_reward_model", "evaluate_reward_model")
# Both end at the gate: two steps teach the reward model nothing.
CHANGES = (
    "run.store_dir=outputs/twice-store",
    "train_sft.schedule={max_steps: 2, eval_steps: 2}",
    "train_reward_model.schedule={max_steps: 2, eval_steps: 2}",
    "evaluate_reward_model.suites=[]",
    "gates.reward_model.minimum_accuracy=1",
)


def test_two_runs_of_one_configuration_make_each_stage_once_and_end_alike(served: Path) -> None:
    both = [start(served, f"run.name={name}", *CHANGES) for name in ("first", "second")]
    try:
        said = [running.communicate(timeout=400)[0] for running in both]
    finally:
        for running in both:
            end(running)
    for running, text in zip(both, said, strict=True):
        assert running.returncode == 1, text
        assert "The reward model did not pass its gate" in text, text
        assert "Traceback" not in text
    store = served / "outputs/twice-store"
    for stage in STAGES:
        assert len(list(store.glob(f"attempts/{stage}/*/*"))) == 1, stage
        assert len(list(store.glob(f"artifacts/{stage}/*/MANIFEST.json"))) == 1, stage
        assert sorted(how_it_ended(text, stage) for text in said) == ["made", "reused"], said
    assert "is at the same work; waiting for it." in "".join(said)


def test_a_second_run_of_the_same_name_is_refused_while_the_first_lives_and_starts_once_it_died(served: Path) -> None:
    changes = ("run.name=alone", "run.store_dir=outputs/alone-store")
    first = start(served, *changes)
    try:
        wait_for_log(first, served / "outputs/alone-store", stage="train_sft", sign=" of 2000")
        refused = rlhf(served, "run", *changes, "run.seed=9")
        assert refused.returncode == 1, refused.stdout
        assert f"(process {first.pid} on {socket.gethostname()}, since 20" in refused.stdout
        assert "--set run.name=" in refused.stdout
        assert first.poll() is None
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(timeout=30)
        again = start(served, *changes)
        try:
            assert "is at work in" not in read_until(again, "filter_dataset")
            os.killpg(again.pid, signal.SIGTERM)
            again.communicate(timeout=100)
        finally:
            end(again)
    finally:
        end(first)


def how_it_ended(said: str, stage: str) -> str:
    (line,) = (line for line in said.splitlines() if line.startswith((f"✔ {stage} ", f"↺ {stage} ")))
    return "reused" if " reused " in line else "made"
