"""The same run started twice at once: each stage is made once, the other run waits for it and takes it over."""

from pathlib import Path

import pytest
from short_runs import end, start

pytestmark = [pytest.mark.slow, pytest.mark.stages]

STAGES = ("filter_dataset", "build_base_model", "train_sft", "train_reward_model", "evaluate_reward_model")
# Both end at the gate: two steps teach the reward model nothing.
CHANGES = (
    "run.name=twice",
    "run.store_dir=outputs/twice-store",
    "train_sft.schedule={max_steps: 2, eval_steps: 2}",
    "train_reward_model.schedule={max_steps: 2, eval_steps: 2}",
    "evaluate_reward_model.suites=[]",
    "gates.reward_model.minimum_accuracy=1",
)


def test_two_runs_of_one_configuration_make_each_stage_once_and_end_alike(served: Path) -> None:
    both = [start(served, *CHANGES) for _ in range(2)]
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


def how_it_ended(said: str, stage: str) -> str:
    (line,) = (line for line in said.splitlines() if line.startswith((f"✔ {stage} ", f"↺ {stage} ")))
    return "reused" if " reused " in line else "made"
