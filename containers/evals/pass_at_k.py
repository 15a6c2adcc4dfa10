"""pass@k: how often at least one of k completions is right, without bias from the completions at hand."""

from collections.abc import Sequence
from math import comb

from containers.contracts.outcome import Metric
from containers.evals.statistics import share_metric


def pass_at(num_right: int, num_all: int, k: int) -> float:
    """Return the chance that k of the completions, drawn without return, hold a right one.

    Source: Chen et al. 2021, arXiv:2107.03374, equation 1: 1 − C(n − c, k) / C(n, k).
    Example: 1 right of 4 and k = 2: of 6 draws 3 hold it, so 0.5.
    """
    return 1.0 - comb(num_all - num_right, k) / comb(num_all, k)


def pass_at_k(of_prompts: Sequence[Sequence[float]], *, name: str, confidence: float) -> tuple[Metric, ...]:
    """Return pass@k for k = 1, 2, 4 … up to the completions of a prompt, each with its interval over prompts.

    Args:
        of_prompts: for each prompt 1 for each right completion and 0 for each wrong one.

    Returns:
        Nothing where a prompt has one completion: pass@1 is the share of right ones.
    """
    fewest = min(map(len, of_prompts), default=0)
    sizes = [2**power for power in range(1, fewest.bit_length()) if 2**power <= fewest]

    def shares(k: int) -> list[float]:
        return [pass_at(round(sum(right)), len(right), k) for right in of_prompts]

    return tuple(share_metric(shares(k), name=f"{name}_{k}", confidence=confidence) for k in sizes)
