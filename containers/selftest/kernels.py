"""Probe `kernels`: TRL's log-probabilities beside float64, and the attention kernel for the run's heads."""

from typing import Any

import torch
from trl.kernels import ChunkedLogProbFunction

from containers.packing.kernel import Shape, failure_of, try_kernels
from containers.selftest.probe import Bench, Findings
from containers.selftest.shape import model_config
from containers.token_budgets import head_tile_words

_TOKENS, _CPU_TOKENS = 4096, 64
# Tokens whose logits exist in float64 at a time.
_EXACT_TOKENS = 256


def probe(bench: Bench, found: Findings) -> None:
    """Compile and compare the kernels; each figure is the largest error, relative to the largest value."""
    device = bench.device
    try_kernels(device)
    config = model_config(bench.request).get_text_config()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokens = _TOKENS if device.type == "cuda" else _CPU_TOKENS
    generator = torch.Generator(device).manual_seed(0)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    hidden, weight = made(tokens, config.hidden_size), made(config.vocab_size, config.hidden_size)
    weight *= config.hidden_size**-0.5
    targets = torch.randint(config.vocab_size, (tokens,), generator=generator, device=device)
    size = f"{tokens:,} tokens, {config.vocab_size:,} words"
    for name, error in _errors(hidden, weight, targets).items():
        found.add(name, error, "of the largest", of=size)
    found.add("rounding", torch.finfo(dtype).eps, "")
    if device.type == "cpu":
        found.notes.append("The attention kernel was not tried: it is for GPUs.")
        return
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    problem = failure_of(Shape(device, torch.bfloat16, config.num_attention_heads, key_heads, width))
    found.add("attention_kernel", float(not problem), "yes")
    how = f"branch by branch, as {problem}" if problem else "by one kernel for all branches"
    found.notes.append(f"Attention of packed rows is computed {how}.")


def _errors(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """Return the errors of log-probabilities, entropies and the gradient of the states."""
    states = hidden.detach().requires_grad_()
    tile = head_tile_words(len(targets), on_gpu=hidden.is_cuda)
    apply: Any = ChunkedLogProbFunction.apply
    logps, entropies, *_ = apply(states, weight, None, targets, 1.0, tile, None, 1.0, ("entropy",))
    (gradient,) = torch.autograd.grad(logps.sum(), states)
    found = (logps.detach(), entropies.detach(), gradient)
    largest, errors = [0.0] * 3, [0.0] * 3
    exact_weight = weight.double()
    for start in range(0, len(targets), _EXACT_TOKENS):
        part = slice(start, start + _EXACT_TOKENS)
        exact = _exactly(hidden[part].double(), exact_weight, targets[part])
        for place, (one, other) in enumerate(zip(found, exact, strict=True)):
            largest[place] = max(largest[place], float(other.abs().max()))
            errors[place] = max(errors[place], float((one[part].double() - other).abs().max()))
    names = ("log-probabilities", "entropies", "gradient")
    return {name: error / most for name, error, most in zip(names, errors, largest, strict=True)}


def _exactly(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities, entropies and the gradient of the states, in float64."""
    states = hidden.detach().requires_grad_()
    scores = (states @ weight.T).log_softmax(dim=-1)
    logps = scores.gather(1, targets[:, None]).squeeze(1)
    (gradient,) = torch.autograd.grad(logps.sum(), states)
    entropies = -(scores.exp() * scores).sum(dim=-1)
    return logps.detach(), entropies.detach(), gradient
