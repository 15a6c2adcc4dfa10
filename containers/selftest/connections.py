"""Probe `connections`: all-reduces of the sizes of gradients, the speed of each pair of ranks, shared memory in use."""

import time

import torch
from torch import distributed

from containers.contracts.hardware import COLLECTIVES_FILE, Collectives
from containers.distributed.probe import measure_collectives
from containers.distributed.ranks import join_ranks, of_all_ranks, own_rank
from containers.selftest.cards import settle
from containers.selftest.probe import Bench, Findings, NotHereError

_MIB = 1024**2
# The gradient of the adapters of an 8B model in float32 is about 700 MiB.
_SIZES, _CPU_SIZES = (1 * _MIB, 25 * _MIB, 700 * _MIB), (1 * _MIB, 25 * _MIB)
_PAIR_BYTES, _CPU_PAIR_BYTES = 256 * _MIB, 4 * _MIB
_REPEATS = 3


def probe(bench: Bench, found: Findings) -> None:
    """Measure, with all ranks of the profile."""
    if bench.context.spec.batch.num_processes == 1:
        raise NotHereError("the profile has one rank")
    join_ranks(bench.context)
    device = bench.device
    sizes = _SIZES if device.type == "cuda" else _CPU_SIZES
    measured = measure_collectives(bench.context.spec.profile, device, sizes=sizes)
    first = Collectives.read_if_valid(bench.context.work / COLLECTIVES_FILE)
    shm = max(measured.shm_used_bytes, first.shm_used_bytes if first else 0)
    for one in measured.sizes:
        of = f"{one.size_bytes // _MIB} MiB"
        found.add("all_reduce", one.median_s, "s", of=of)
        found.add("bus", one.bus_bytes_per_s, "bytes/s", of=of)
    found.add("shm_used", shm, "bytes")
    found.add("shm_size", measured.shm_total_bytes, "bytes")
    for sender, receiver, speed in _pairs(device):
        found.add("pair", speed, "bytes/s", of=f"rank {sender} to {receiver}")
    ways = ", ".join(first.transports) if first and first.transports else "as torch chose"
    found.notes.append(f"{measured.num_processes} ranks over {measured.backend}, {ways}.")


def _pairs(device: torch.device) -> list[tuple[int, int, float]]:
    """Return bytes a second from each rank to each other one; all ranks must call it."""
    ranks, own = distributed.get_world_size(), own_rank()
    count = (_PAIR_BYTES if device.type == "cuda" else _CPU_PAIR_BYTES) // 4
    values, rates = torch.ones(count, device=device), {}
    for one in range(ranks):
        for other in range(ranks):
            if one == other:
                continue
            distributed.barrier()
            if own not in (one, other):
                continue
            took = []
            for _ in range(1 + _REPEATS):  # the first makes the connection
                settle(device)
                started = time.monotonic()
                if own == one:
                    distributed.send(values, other)
                else:
                    distributed.recv(values, one)
                settle(device)
                took.append(time.monotonic() - started)
            if own == other:
                rates[one, other] = 4 * count / max(min(took[1:]), 1e-9)
    merged = {pair: rate for part in of_all_ranks(rates) for pair, rate in part.items()}
    return [(*pair, rate) for pair, rate in sorted(merged.items())]
