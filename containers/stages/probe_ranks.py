"""`python -m containers.stages.probe_ranks SPEC`: the ranks of a stage test their connections, and do nothing else.

They write what they measured to `collectives.json` in the work folder. If they do not reach each other, the outcome
says why.
"""

import logging
import os
import sys
from pathlib import Path

from torch import distributed

from containers.contracts.digests import write_atomically
from containers.contracts.names import EVENTS_FILE, OUTCOME_FILE
from containers.contracts.outcome import StageFailure
from containers.contracts.spec import StageSpec
from containers.distributed.ranks import join_ranks
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.harness.recorder import Recorder
from containers.stages.entry import become_torchrun

logger = logging.getLogger(__name__)


def main() -> int:
    """Run the probe. Like the entry program, this process becomes torchrun, which starts this module once per rank."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    spec = StageSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    if "RANK" not in os.environ:
        become_torchrun("containers.stages.probe_ranks", sys.argv[1], num_processes=spec.batch.num_processes)
    work = Path(spec.work_path)
    recorder = Recorder(work / EVENTS_FILE, enabled=os.environ["RANK"] == "0")
    try:
        join_ranks(StageContext(spec=spec, work=work, recorder=recorder))
    except StageError as error:
        logger.error("%s", error)
        failure = StageFailure(stage=spec.stage, key=spec.key, kind=error.kind, message=str(error))
        write_atomically(work / OUTCOME_FILE, failure.model_dump_json(indent=2))
        return 1
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
