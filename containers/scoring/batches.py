"""Batches of sequences with little padding, and the number of tokens per forward."""

from collections.abc import Sequence

import torch

from containers.token_budgets import CPU_BATCH_TOKENS, gpu_batch_tokens


def length_batches(lengths: Sequence[int], *, max_items: int, max_tokens: int | None = None) -> list[list[int]]:
    """Return the places of the sequences, longest first, cut into batches; each place is in one batch.

    Args:
        lengths: tokens of each sequence.
        max_items: maximum sequences in a batch.
        max_tokens: maximum tokens of a batch with its padding; a longer sequence is a batch alone. None: no limit.
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
    """Tokens per forward for that device: measured for CPUs, estimated from the memory of GPUs.

    It uses the total memory, not the free memory, so that the same machine makes the same batches.
    """
    if device.type == "meta":  # other programs hold the model, on devices like this process's
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda":
        return CPU_BATCH_TOKENS
    gib = torch.cuda.get_device_properties(device).total_memory / 1024**3
    return gpu_batch_tokens(gib)
