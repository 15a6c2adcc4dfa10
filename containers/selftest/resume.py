"""Probe `resume`: how far the weights of a training that was killed and stopped are from those of one that was not."""

from containers.contracts.configs.selftest import RESUMED_INPUT, UNINTERRUPTED_INPUT
from containers.selftest.comparison import weights_apart
from containers.selftest.probe import Bench, Findings


def probe(bench: Bench, found: Findings) -> None:
    """Compare two files of weights."""
    one, other = (bench.context.input_path(name) for name in (RESUMED_INPUT, UNINTERRUPTED_INPUT))
    apart = weights_apart(one, other)
    if "problem" in apart:
        found.notes.append(f"The weights cannot be compared: {apart['problem']}.")
        return
    found.add("same_weights", float(apart["equal"]), "yes")
    found.add("relative", apart["relative"], "of the weights")
    found.add("largest", apart["largest"], "")
