"""`python -m containers.selftest.program SPEC`: measure what the request in the spec names, one probe after another.

Each probe that ends leaves a line in `probes.jsonl`, in the work folder. After a probe that broke off, the program
ends: a GPU may be in no state to go on, so the orchestrator starts it again for the probes that are left.
"""

import logging
import os
import sys
import time
import traceback
from pathlib import Path

from containers.contracts.configs.selftest import MEASURED_PROBES_FILE, REQUEST_INPUT, Measured, SelftestRequest
from containers.contracts.names import EVENTS_FILE
from containers.contracts.spec import StageSpec
from containers.formatting import error_line
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.harness.log_filters import silence_known_noise
from containers.harness.recorder import Recorder
from containers.selftest.probe import PROBES, Bench, Findings, NotHereError
from containers.stages.entry import become_torchrun, leave

_MODULE = "containers.selftest.program"


def main() -> int:
    """Measure; return 1 after a probe that broke off. With several ranks, this process becomes torchrun first."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    silence_known_noise()
    spec = StageSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    if "RANK" not in os.environ and spec.batch.num_processes > 1:
        become_torchrun(_MODULE, sys.argv[1], num_processes=spec.batch.num_processes)
    work, is_first = Path(spec.work_path), os.environ.get("RANK", "0") == "0"
    context = StageContext(spec=spec, work=work, recorder=Recorder(work / EVENTS_FILE, enabled=is_first))
    for folder in (context.output, context.checkpoints):
        folder.mkdir(exist_ok=True)
    request = SelftestRequest.model_validate_json(context.input_path(REQUEST_INPUT).read_bytes())
    for name in request.probes:
        found = _measured(name, Bench(context, request))
        if is_first:
            with open(work / MEASURED_PROBES_FILE, "a", encoding="utf-8") as stream:
                stream.write(f"{found.model_dump_json()}\n")
        if found.error:
            return 1
    return 0


def _measured(name: str, bench: Bench) -> Measured:
    """Run one probe; whatever it raises is its result."""
    found, started = Findings(), time.monotonic()
    refused = error = ""
    try:
        PROBES[name](bench, found)
    except NotHereError as reason:
        refused = str(reason)
    except StageError as problem:
        error = str(problem)
    except Exception as problem:
        traceback.print_exc()
        error = error_line(problem)
    return Measured(
        probe=name,
        values=tuple(found.values),
        notes=tuple(found.notes),
        refused=refused,
        error=error,
        duration_s=time.monotonic() - started,
    )


if __name__ == "__main__":
    leave(main())
