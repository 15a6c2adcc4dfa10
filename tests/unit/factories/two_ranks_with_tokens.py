"""One of two ranks that read the examples: `python -m … RANK FILE FOLDER WORK`."""

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from torch import distributed

from containers.contracts.configs.stages import StageConfig
from containers.contracts.names import EVENTS_FILE, StageName
from containers.harness.context import StageContext
from containers.harness.recorder import Recorder
from containers.stages import train_sft
from containers.training import program
from containers.training.examples import TrainingExamples
from tests.unit.factories.kept_tokens_factory import SFT, notes
from tests.unit.factories.spec_factory import make_spec


def stop(context: StageContext, config: StageConfig, examples: TrainingExamples) -> NoReturn:
    """Say what was read, and end before anything is trained."""
    distributed.barrier()
    print(json.dumps({"examples": repr(examples), "notes": notes(context.work)}), flush=True)
    os._exit(0)  # gloo may abort a process that parts in the ordinary way


if __name__ == "__main__":
    rank, file, folder, work = sys.argv[1:]
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=2)
    inputs = {"pairs": Path(folder) / "pairs", "start_model": Path(folder) / "start"}
    spec = make_spec(Path(work), StageName.TRAIN_SFT, SFT[1], inputs)
    context = StageContext(spec=spec, work=Path(work), recorder=Recorder(Path(work) / EVENTS_FILE, enabled=rank == "0"))
    context.checkpoints.mkdir(parents=True, exist_ok=True)
    shared: Any = program
    shared.join_ranks = lambda context: None
    shared.resolve_training_schedule = stop
    train_sft.run(context)
