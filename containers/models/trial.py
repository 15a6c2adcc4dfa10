"""Evaluation mode, and the trial of a faster computation on a model before it is used: it may not support it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from containers.formatting import error_line

# Errors of a model whose layers do something else than the faster computation expects.
_UNSUITED = (AssertionError, AttributeError, KeyError, TypeError, ValueError, RuntimeError, IndexError)


@dataclass
class Trial:
    """The result of a trial.

    Attributes:
        failure: the error, in one line, of a model that does not support the computation; empty if it does.
    """

    failure: str = ""


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Compute in evaluation mode and without gradients while this is open; afterwards the model has its mode again."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


@contextmanager
def trial() -> Iterator[Trial]:
    """Catch the errors that show that the model does not support what is tried.

    Raises:
        RuntimeError: the GPU is full or broken, which says nothing about the model.
    """
    found = Trial()
    try:
        yield found
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except _UNSUITED as error:
        # cuBLAS errors are plain RuntimeErrors.
        if "CUDA error" in str(error):
            raise
        found.failure = error_line(error)
