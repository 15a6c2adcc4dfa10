"""A faster way of computing is tried on a model before it is used: the model may not be made for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from containers.formatting import error_line

# What a model raises whose layers do something else than the faster way expects.
_UNSUITED = (AssertionError, AttributeError, KeyError, TypeError, ValueError, RuntimeError, IndexError)


@dataclass
class Trial:
    """How it went.

    Attributes:
        failure: the error of a model that is not made for it, in a line; empty where it went through.
    """

    failure: str = ""


@contextmanager
def trial() -> Iterator[Trial]:
    """Keeps the errors by which a model shows that it is not made for what is tried.

    Raises:
        RuntimeError: a full or broken GPU, which says nothing about the model.
    """
    found = Trial()
    try:
        yield found
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except _UNSUITED as error:
        # cuBLAS' own errors are plain ones.
        if "CUDA error" in str(error):
            raise
        found.failure = error_line(error)
