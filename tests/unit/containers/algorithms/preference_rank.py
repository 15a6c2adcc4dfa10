"""One rank of a training on pairs, under torchrun: `preference_rank.py SPEC CONFIG`, both JSON files.

No stage has the configuration yet, so it takes the place of the one in the spec.
"""

import os
import sys
from pathlib import Path

from containers.algorithms.preference_training import PreferenceTraining
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.names import EVENTS_FILE
from containers.contracts.spec import StageSpec
from containers.harness.context import StageContext
from containers.harness.recorder import Recorder
from containers.training.program import run_training

if __name__ == "__main__":
    spec = StageSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    config = TrainDpoConfig.model_validate_json(Path(sys.argv[2]).read_bytes())
    work = Path(spec.work_path)
    context = StageContext(
        spec=spec.model_copy(update={"config": config}),
        work=work,
        recorder=Recorder(work / EVENTS_FILE, enabled=os.environ.get("RANK", "0") == "0"),
    )
    for folder in (context.output, context.checkpoints, context.tensorboard):
        folder.mkdir(parents=True, exist_ok=True)
    run_training(context, PreferenceTraining(context))
