"""Ranks under the real torchrun that wait for ever: `python -c SOURCE NUM_RANKS`, as a stage's program.

The first rank holds the interpreter (a C call that keeps it); the others wait for it in a collective of gloo's. Neither
hears SIGTERM. One more process per rank closes everything, leaves its session, and is adopted by init.
"""

import ctypes
import datetime
import faulthandler
import os
import signal
import sys
import time

if "RANK" not in os.environ:
    program = os.path.join(os.getcwd(), "hung_ranks_program.py")
    with open(program, "w") as stream:
        stream.write(sys.orig_argv[sys.orig_argv.index("-c") + 1])
    run = ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc-per-node={sys.argv[1]}", program]
    os.execv(sys.executable, [sys.executable, *run])  # noqa: S606

faulthandler.register(signal.SIGUSR1, all_threads=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 256)
        time.sleep(10_000)
    os._exit(0)

import torch  # noqa: E402
from torch import distributed  # noqa: E402

rank = int(os.environ["RANK"])
distributed.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
distributed.barrier()
os.write(1, f"rank {rank} is up\n".encode())


def waits_for_ever() -> None:
    if rank == 0:
        while True:
            ctypes.PyDLL(None).sleep(100_000)
    distributed.all_reduce(torch.ones(1))


waits_for_ever()
