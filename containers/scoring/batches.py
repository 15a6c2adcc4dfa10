"""Sequences of unlike length to batches with little padding between them."""

from collections.abc import Sequence


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
