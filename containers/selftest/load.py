"""Probe `load`: full load on all cards at once, with the speed of each at the beginning and at the end."""

import time

import torch

from containers.selftest.cards import settle
from containers.selftest.probe import Bench, Findings, NotHereError

_SIDE = 8192
# Products that a card is given before the others get theirs: about 30 ms on an H100.
_AT_A_TIME = 20
_PART_S = 10.0


def probe(bench: Bench, found: Findings) -> None:
    """Multiply on every card until the time is over; compare the last ten seconds with the first ten."""
    if not bench.on_gpu:
        raise NotHereError("the profile has no GPUs")
    cards = bench.cards
    matrices = {
        name: [torch.randn(_SIDE, _SIDE, device=device, dtype=torch.bfloat16) for _ in range(3)]
        for name, device in cards.items()
    }
    began, seconds = time.monotonic(), bench.request.load_s
    done: list[tuple[float, int]] = [(0.0, 0)]
    while time.monotonic() - began < seconds:
        for left, right, out in matrices.values():
            for _ in range(_AT_A_TIME):
                torch.mm(left, right, out=out)
        for device in cards.values():
            settle(device)
        done.append((time.monotonic() - began, done[-1][1] + _AT_A_TIME))
    first = _rate([one for one in done if one[0] <= _PART_S])
    last = _rate([one for one in done if one[0] >= done[-1][0] - _PART_S])
    found.add("load", done[-1][0], "s")
    found.add("at_first", 2 * _SIDE**3 * first, "FLOP/s")
    found.add("at_last", 2 * _SIDE**3 * last, "FLOP/s")


def _rate(done: list[tuple[float, int]]) -> float:
    """Return products a second of the slowest card, from moments and counts."""
    (start, before), (end, after) = done[0], done[-1]
    return (after - before) / max(end - start, 1e-9)
