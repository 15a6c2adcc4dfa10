"""Two ranks without torchrun: `python two_ranks.py RANK FILE HOW`; the first prints what it measured, or the error.

HOW is `well`; or `apart`: the other rank never answers; or `wrong`: what arrives is not what was sent.
"""

import os
import signal
import sys
from typing import Any

import torch
from torch import distributed

from containers.contracts.hardware import GpuProfile
from containers.distributed import probe as collective_probe
from containers.harness.errors import StageError

PROFILE = GpuProfile(name="cpu-2", num_gpus=0, num_processes=2, precision="float32")

if __name__ == "__main__":
    rank, file, how = sys.argv[1:]
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=2)
    if how == "apart":
        collective_probe.WAIT_S = 2
        if rank == "1":
            signal.pause()
    if how == "wrong":
        add_up = collective_probe._all_reduce

        def wrong(values: torch.Tensor, *rest: Any) -> None:
            values[-1] += 1
            add_up(values, *rest)

        collective_probe._all_reduce = wrong
    try:
        found = collective_probe.measure_collectives(PROFILE, torch.device("cpu"))
    except StageError as error:
        print(f"{error.kind}: {error}", flush=True)
        os._exit(0)  # gloo may abort a process that ends while nobody has answered it
    else:
        print(found.model_dump_json() if rank == "0" else "")
