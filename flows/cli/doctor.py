"""`rlhf doctor`: what this machine does with the ranks of a GPU profile, measured, and what to change."""

import argparse
import tempfile
from pathlib import Path

from flows.cli.options import Commands, add_command, add_config_options


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "doctor",
        doctor,
        summary="measure how the ranks of the GPU profile reach each other here, and what shared memory they take",
        example="rlhf doctor -c configs/runs/demo.yaml --profile 4x48gb",
    )
    add_config_options(parser)


def doctor(parsed: argparse.Namespace) -> int:
    """`rlhf doctor`: 0 where the ranks reach each other, or there is one."""
    from tasks.config.loading import load_run_config

    loaded = load_run_config(parsed.config, overrides=parsed.overrides, profile=parsed.profile)
    profile, config = loaded.config.gpu_profile, loaded.config
    if profile.num_processes == 1:
        print(f"Profile `{profile.name}` has one rank: there is nothing between ranks to measure.")
        return 0
    from containers.contracts.outcome import StageFailure
    from containers.formatting import size
    from containers.launch.base import LaunchError
    from tasks.measure_ranks import measure_ranks, shm_advice
    from tasks.run.runtime import code_identity

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
