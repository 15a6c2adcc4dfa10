"""A run configuration for tests that run stages by themselves: a model built on the spot, data that nobody reads."""

from pathlib import Path
from typing import Any

from containers.contracts.hardware import GpuProfile
from tasks.config.run import RunConfig

CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32")


def run_config(
    name: str, *, output_dir: Path, store_dir: Path, profile: GpuProfile = CPU, runtime: Any = None, **run: Any
) -> RunConfig:
    """The configuration.

    Args:
        runtime: keys of its section.
        run: further keys of the section `run`.
    """
    return RunConfig.model_validate(
        {
            "run": {"name": name, "output_dir": output_dir, "store_dir": store_dir, **run},
            "runtime": runtime or {},
            "gpu_profile": profile,
            "build_base_model": {},
            "dataset": {"train": "rows.jsonl"},
        }
    )
