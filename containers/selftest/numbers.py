"""Probe `numbers`: packed rows beside padded ones, and the profile's precision beside float32 on the CPU."""

import os

import torch

from containers.selftest.comparison import compared
from containers.selftest.probe import Bench, Findings
from containers.selftest.shape import causal_model, model_config, reward_model

# Of the run's widths, so much that a processor computes it in seconds.
_LAYERS, _VOCABULARY = 4, 4096
_LENGTHS, _CPU_LENGTHS = (128, 64), (48, 24)
_COUNT = 4


def probe(bench: Bench, found: Findings) -> None:
    """Compare scores, log-probabilities and gradients of a model of the run's width with few layers."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # float32 of this width on one core would take minutes
    try:
        for kind, make in (("reward model", reward_model), ("policy", causal_model)):
            config = model_config(bench.request)
            config.num_hidden_layers = min(_LAYERS, config.num_hidden_layers)
            config.vocab_size = min(_VOCABULARY, config.vocab_size)
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[: config.num_hidden_layers]
            model = make(config, dtype=torch.float32, device=torch.device("cpu"))
            lengths = _LENGTHS if bench.on_gpu else _CPU_LENGTHS
            for one in compared(kind, model, device=str(bench.device), lengths=lengths, count=_COUNT):
                found.add("gradients", one["gradient_cosine"], "cosine", of=one["what"])
                found.add("loss", one["loss_relative"], "relative", of=one["what"])
                name, unit = ("logps_apart", "nats") if kind == "policy" else ("scores_apart", "")
                found.add(name, one["values_largest"], unit, of=one["what"])
                found.notes += [one["note"]] if "note" in one else []
    finally:
        torch.set_num_threads(before)
