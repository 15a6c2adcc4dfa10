"""The loss of supervised fine-tuning: the completion's tokens become likely."""

from torch import Tensor


def negative_log_likelihood(logps: Tensor, *, num_tokens: int) -> Tensor:
    """Return −Σ log-probabilities, per token of the whole step.

    Args:
        logps: log-probabilities of some completions of the step, each the sum over its tokens.
        num_tokens: tokens of all completions of the step; so each token of the step weighs the same.

    Example: sums −3 and −5 of a step with 4 tokens give 2.
    """
    return -logps.sum() / max(num_tokens, 1)
