"""The records of a finished training: training info, the Trainer's state, and the curves."""

import json
import platform
import resource
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from containers.contracts.names import CURVES_FILE, EVENTS_FILE, TRAINER_STATE_FILE, TRAINING_INFO_FILE
from containers.contracts.records import TrainingInfo
from containers.contracts.schedule import ResolvedSchedule
from containers.harness.context import StageContext

_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "tokenizers")


@dataclass(frozen=True)
class Prepared:
    """Schedule and numbers of examples of a training, known before its model is built.

    Attributes:
        num_evaluated: validation examples of each evaluation; None: all.
    """

    schedule: ResolvedSchedule
    num_examples: int
    num_over_long: int
    num_without_row: int
    num_evaluated: int | None = None


def write_training_records(
    context: StageContext,
    *,
    trainer: Any,
    algorithm: str,
    prepared: Prepared,
    parameters: tuple[int, int],
    started_at_s: float,
    resumed_from_step: int | None,
    published_step: int | None,
    ended_because: str,
) -> None:
    """Write training_info.json, trainer_state.json and curves.jsonl into the artifact.

    Args:
        parameters: numbers of trainable and of all parameters, from `models.parameter_counts`.
        started_at_s: `time.monotonic()` at the start of this attempt.
        published_step: whose weights are published; None: the last one's.
        ended_because: why training ended before its last planned step; empty: it did not.
    """
    state, keeps_best = trainer.state, bool(trainer.args.load_best_model_at_end)
    info = TrainingInfo(
        stage=context.spec.stage,
        algorithm=algorithm,
        num_steps=state.global_step,
        planned_steps=prepared.schedule.num_steps,
        num_examples=prepared.num_examples,
        examples_left_out=prepared.num_over_long,
        examples_without_row=prepared.num_without_row,
        global_batch_size=context.spec.batch.global_batch_size,
        trainable_parameters=parameters[0],
        total_parameters=parameters[1],
        best_step=state.best_global_step if keeps_best else None,
        best_metric_name=trainer.args.metric_for_best_model if keeps_best else "",
        best_metric=state.best_metric if keeps_best else None,
        num_evaluated=prepared.num_evaluated,
        resumed_from_step=resumed_from_step,
        published_step=published_step,
        ended_because=ended_because,
        duration_s=time.monotonic() - started_at_s,
        peak_memory_bytes=peak_memory_bytes(),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})",
        precision=context.spec.profile.precision,
        versions=(("python", platform.python_version()), *((name, metadata.version(name)) for name in _PACKAGES)),
    )
    (context.output / TRAINING_INFO_FILE).write_text(info.model_dump_json(indent=2), encoding="utf-8")
    state_file = context.output / TRAINER_STATE_FILE
    trainer.state.save_to_json(str(state_file))
    state = json.loads(state_file.read_text(encoding="utf-8"))
    if state.get("best_model_checkpoint"):
        # The Trainer writes this machine's path; the same run elsewhere must give the same artifact.
        state["best_model_checkpoint"] = Path(state["best_model_checkpoint"]).name
    state_file.write_text(json.dumps(state, indent=2), encoding="utf-8")
    write_curves(context)


def write_curves(context: StageContext) -> None:
    """Copy the metrics lines of the events into curves.jsonl, one point per step and set of names.

    An attempt that resumed from a checkpoint records some steps a second time; the later line counts. Lines that a full
    disk or a power cut left unreadable are skipped, and a note counts them.
    """
    points: dict[tuple[int, tuple[str, ...]], str] = {}
    num_unreadable = 0
    events = context.work / EVENTS_FILE
    text = events.read_text(encoding="utf-8", errors="replace") if events.is_file() else ""
    for line in filter(None, text.split("\n")):
        try:
            event = json.loads(line)
            if event["type"] == "metrics":
                names = sorted([*event["values"], *event.get("non_finite", {})])
                points[(int(event["step"]), tuple(names))] = line
        except (ValueError, KeyError, TypeError, AttributeError):
            num_unreadable += 1
    if num_unreadable:
        context.recorder.note(f"{num_unreadable} unreadable lines of {EVENTS_FILE} were left out of the curves.")
    lines = [line for _, line in sorted(points.items(), key=lambda item: item[0])]
    (context.output / CURVES_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def peak_memory_bytes() -> int:
    """Peak memory of this rank in bytes: allocated on its GPU, or resident if there is no GPU."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    # Not `ru_maxrss`: on Linux it begins with the peak of the process that started this program.
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii", errors="replace").splitlines() if status.is_file() else []
    kib = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if kib is None else kib) * 1024
