"""Probe `memory`: of each card, a pattern over its memory, a large product, and copies."""

import statistics
import time
from collections.abc import Callable

import torch

from containers.contracts.hardware import GIB
from containers.selftest.probe import Bench, Findings

_SHARE_FILLED = 0.90
_CPU_BYTES = GIB // 4
_BLOCK_BYTES = GIB // 4
_REPEATS = 7
# Odd, so that every word differs from its neighbours in many bits.
_STEP = 2_654_435_761
_SIDE, _CPU_SIDE = 8192, 1024
_COPIED_BYTES, _CPU_COPIED_BYTES = GIB, GIB // 16


def probe(bench: Bench, found: Findings) -> None:
    """Measure the cards one after another."""
    for name, device in bench.cards.items():
        on_gpu, started = device.type == "cuda", time.monotonic()
        torch.zeros(1, device=device)
        settle(device)
        found.add("context", time.monotonic() - started, "s", of=name)
        filled, wrong = pattern(device)
        found.add("filled", filled, "bytes", of=name)
        found.add("wrong_words", wrong, "words", of=name)
        dtype, side = (torch.bfloat16, _SIDE) if on_gpu else (torch.float32, _CPU_SIDE)
        found.add("product", product_flops(device, dtype, side=side), "FLOP/s", of=name)
        count = (_COPIED_BYTES if on_gpu else _CPU_COPIED_BYTES) // 4
        # A copy on the card reads and writes each byte.
        found.add("copy", 2 * 4 * count / _copy_s(torch.empty(count, device=device), device), "bytes/s", of=name)
        if on_gpu:
            host = torch.empty(count, pin_memory=True)
            found.add("from_host", 4 * count / _copy_s(host, device), "bytes/s", of=name)
            torch.cuda.empty_cache()


def _copy_s(source: torch.Tensor, device: torch.device) -> float:
    """Return the seconds of a copy to the device."""
    target = torch.empty(source.shape, dtype=source.dtype, device=device)
    return _median_s(lambda: target.copy_(source, non_blocking=True), device)


def pattern(device: torch.device) -> tuple[int, int]:
    """Fill nine tenths of the free memory (of a processor's, 256 MiB) and read it back; return bytes and wrong words.

    Every block is written before the first is read, so a word that lands in another block is seen.
    """
    free = int(_SHARE_FILLED * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else _CPU_BYTES
    words = _BLOCK_BYTES // 4
    # A quarter of the blocks' room is what the comparison itself needs.
    number = max(1, (free - 4 * _BLOCK_BYTES if device.type == "cuda" else free) // _BLOCK_BYTES)
    places = torch.arange(words, dtype=torch.int32, device=device)
    blocks = [_expected(places, block) for block in range(number)]
    wrong = sum(int((block != _expected(places, at)).sum()) for at, block in enumerate(blocks))
    return number * _BLOCK_BYTES, wrong


def _expected(places: torch.Tensor, block: int) -> torch.Tensor:
    """Return [words] int32 of that block; products wrap around."""
    step = _STEP - 2**32
    return (places + block * 40_503) * step


def product_flops(device: torch.device, dtype: torch.dtype, *, side: int) -> float:
    """Return operations a second of a product of two square matrices."""
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / _median_s(lambda: left @ right, device)


def _median_s(work: Callable[[], object], device: torch.device) -> float:
    work()
    settle(device)
    took = []
    for _ in range(_REPEATS):
        started = time.monotonic()
        work()
        settle(device)
        took.append(time.monotonic() - started)
    return max(statistics.median(took), 1e-9)


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
