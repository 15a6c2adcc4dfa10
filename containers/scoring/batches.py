"""Sequences to batches of one forward: with little padding between them, and of how many tokens."""

from collections.abc import Sequence

import torch

from containers.token_budgets import CPU_BATCH_TOKENS, gpu_batch_tokens


def length_batches(lengths: Sequence[int], *, max_items: int, max_tokens: int | None = None) -> list[list[int]]:
    """Places of the sequences, the longest first, cut into batches; each place stands in one batch.

    Args:
        lengths: tokens of each sequence.
        max_items: sequences in a batch, at most.
        max_tokens: tokens of a batch with its padding, at most; a sequence that is longer by itself is a batch of its
            own. None: no bound.
    """
    order = sorted(range(len(lengths)), key=lambda place: lengths[place], reverse=True)
    batches: list[list[int]] = []
    for place in order:
        last = batches[-1] if batches else []
        # Sorted, so the first of a batch is its width.
        is_full = len(last) == max_items or (
            max_tokens is not None and bool(last) and lengths[last[0]] * (len(last) + 1) > max_tokens
        )
        if not last or is_full:
            batches.append([place])
        else:
            last.append(place)
    return batches


def device_batch_tokens(device: torch.device) -> int:
    """Tokens per forward for that device: measured for CPUs, estimated by the memory of GPUs.

    It rests on the memory that the device has, not on what is free: the same machine makes the same batches.
    """
    if device.type != "cuda":
        return CPU_BATCH_TOKENS
    gib = torch.cuda.get_device_properties(device).total_memory / 1024**3
    return gpu_batch_tokens(gib)
