"""`rlhf doctor`: measure the ranks of a GPU profile on this machine, and say what to change."""

import argparse
import tempfile
from pathlib import Path

from containers.contracts.outcome import StageFailure
from containers.formatting import size
from containers.launch.base import LaunchError
from flows.cli.options import Command, add_config_options
from tasks.checks.measure_ranks import measure_ranks, shm_advice
from tasks.config.loading import load_run_config
from tasks.run.runtime import code_identity


def _run(parsed: argparse.Namespace) -> int:
    """Return 0 if the ranks reach each other, or there is only one."""
    loaded = load_run_config(parsed.config, overrides=parsed.overrides, profile=parsed.profile)
    profile, config = loaded.config.gpu_profile, loaded.config
    if profile.num_processes == 1:
        print(f"Profile `{profile.name}` has one rank: there is nothing between ranks to measure.")
        return 0
    try:
        code = code_identity(config.runtime.kind, image=config.image)
        print(f"Profile `{profile.name}`: {profile.num_processes} ranks. Runtime: {code.reason}", flush=True)
        with tempfile.TemporaryDirectory(prefix="rlhf-doctor-") as folder:
            found = measure_ranks(profile, code=code, image=config.image, folder=Path(folder))
    except LaunchError as error:
        print(f"The ranks were not started: {error}")
        return 1
    if isinstance(found, StageFailure):
        print(found.message)
        print("\n".join(f"  {line}" for line in found.evidence[-20:]))
        return 1
    ways = f" ({', '.join(found.transports)})" if found.transports else ""
    print(f"{found.num_processes} ranks reach each other over {found.backend}{ways}, in {found.duration_s:.1f} s:")
    for item in found.sizes:
        speed = f"{size(item.bus_bytes_per_s)}/s on the bus"
        print(f"  all-reduce of {size(item.size_bytes)}: {1000 * item.median_s:.3g} ms, {speed}")
    print(shm_advice(profile, found))
    return 0


DOCTOR = Command(add_config_options, _run)
