"""What nobody disturbed, to compare with what went on after a fault."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tiny_project import (
    Driven,
    TinyProject,
    curves,
    notes,
    recorded_steps,
    stage_processes,
    weights_digest,
    whole_events,
)

from containers.contracts.names import StageName

REWARD = StageName.TRAIN_REWARD_MODEL
POLICY = StageName.TRAIN_POLICY
SFT = StageName.TRAIN_SFT
SAVES_EVERY = {SFT: 5, REWARD: 5, POLICY: 3}


@dataclass(frozen=True)
class Reference:
    """What nobody disturbed: weights and curves of trainings."""

    weights: dict[StageName, str]
    curves: dict[StageName, dict[int, dict[str, float]]]


def own_store(tiny: TinyProject, name: str, stage: StageName, *, store: str = "") -> tuple[str, str, str]:
    """Name, store and setting of a run that finds everything before `stage` finished, and nothing of `stage`."""
    before = [StageName.FILTER_DATASET, StageName.BUILD_BASE_MODEL]
    before += [REWARD] if stage is POLICY else []
    run_name = f"{name}-{stage.replace('_', '-')}"
    store = store or f"{run_name}-store"
    tiny.copy_finished(before, source="undisturbed-store", target=store)
    return run_name, store, f"run.store_dir=outputs/{store}"


def kill_stage_processes(driven: Driven) -> None:
    """SIGKILL to every process of the running stage program."""
    victims = list(stage_processes(driven.process.pid))
    assert victims, driven.text
    for process in victims:
        os.kill(process.pid, signal.SIGKILL)


def assert_went_on(work: Path, artifact: Path, stage: StageName, reference: Reference) -> str:
    """Bit for bit the undisturbed training, from a checkpoint, none before it done twice. Returns what was repeated."""
    resumed_step, stopped_at = last_resumption(work)
    repeated = len(recorded_steps(work)) - len(set(recorded_steps(work)))
    assert 0 < resumed_step <= stopped_at + 1, "a checkpoint of a step that was not reached"
    assert repeated <= SAVES_EVERY[stage]
    assert weights_digest(artifact) == reference.weights[stage]
    assert curves(artifact) == reference.curves[stage]
    steps = "step" if repeated == 1 else "steps"
    return f"{repeated} {steps} of {max(recorded_steps(work))} (saved every {SAVES_EVERY[stage]})"


def last_resumption(work: Path) -> tuple[int, int]:
    """The checkpoint that the last attempt went on from, and the last step that was recorded before it.

    A stage that is to stop ends its step and saves, so where it stopped is in its events, not in the moment at
    which a test chose to disturb it.
    """
    resumed_step, stopped_at, last_step = 0, -1, -1
    for event in whole_events(work / "events.jsonl"):
        if event["type"] == "metrics":
            last_step = max(last_step, event["step"])
        elif event["type"] == "note" and event["text"].startswith("Resuming from checkpoint-"):
            resumed_step, stopped_at = int(event["text"].rstrip(".").rpartition("-")[2]), last_step
    assert resumed_step, f"no attempt went on from a checkpoint: {notes(work)}"
    return resumed_step, stopped_at


def assert_undisturbed(artifact: Path, stage: StageName, reference: Reference) -> None:
    """Bit for bit what nobody disturbed."""
    assert weights_digest(artifact) == reference.weights[stage]
    assert curves(artifact) == reference.curves[stage]
