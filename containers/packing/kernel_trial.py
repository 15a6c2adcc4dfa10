"""TRL computes log-probabilities on GPUs by kernels that Triton compiles when they are first called."""

import torch
from trl.kernels import ChunkedLogProbFunction

from containers.formatting import error_line
from containers.harness.errors import MissingPrerequisiteError

_TOKENS, _WIDTH, _WORDS = 2, 16, 32


def try_kernels(device: torch.device) -> None:
    """Compile and run them once, forward and backward, before anything is loaded: seconds, and none on a CPU.

    Raises:
        MissingPrerequisiteError: they cannot be compiled or run here, for want of a C compiler above all.
    """
    hidden = torch.zeros(_TOKENS, _WIDTH, device=device, requires_grad=True)
    weight = torch.zeros(_WORDS, _WIDTH, device=device)
    targets = torch.zeros(_TOKENS, dtype=torch.long, device=device)
    try:
        logps, *_ = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, _WORDS, None, 1.0, ("entropy",))
        logps.sum().backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton, the compiler and the driver raise what they like
        raise MissingPrerequisiteError(
            f"TRL's kernels cannot be compiled or run on {device}: {error_line(error)}. They need a C compiler (gcc) "
            "and Python's headers where the stage runs: build the stage image on an official PyTorch image, or install "
            "both."
        ) from error
