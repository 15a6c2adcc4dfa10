"""A small world in which a reward that is optimised stops to mean what it stands for; everything in it is known.

An answer is a point in 16 dimensions; the start model writes N(0, I), the policy N(mu, I), so their KL is |mu|² / 2.
The gold reward saturates, and likes length (the first dimension) up to a point. Reward models are small networks that
learnt from 600 noisy pairs of the start model's answers, so that they extrapolate wrongly where it never wrote, as
real ones do.

Source of the setting: Gao et al. 2022, arXiv:2210.10760.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

DIMENSIONS = 16
# [N, DIMENSIONS] to [N].
Value = Callable[[Tensor], Tensor]
_NUM_PAIRS, _FIT_STEPS, _HIDDEN = 600, 250, 32
# Standard deviation of the logistic noise of labels, in units of the gold reward.
LABEL_NOISE = 0.5
_NUM_FOR_SCALE, _NUM_FOR_TRUTH, _NUM_ANSWERS = 2000, 4000, 256
_STEP_SIZE = 0.06


def gold_reward(seed: int) -> Value:
    """Return the gold reward of that world."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(6, DIMENSIONS, generator=generator) / 2.5
    weights[:, 0] = 0

    def gold(answers: Tensor) -> Tensor:
        length, content = answers[:, 0], answers[:, 1:]
        liked = 0.8 * length - 0.25 * length.clamp(min=0) ** 2
        return torch.tanh(answers @ weights.T).sum(-1) + liked - 0.02 * (content**2).sum(-1)

    return gold


def reward_model(gold: Value, *, seed: int) -> Value:
    """Return a network that learnt the gold reward from noisy pairs; its scores have mean 0 and deviation 1."""
    generator = torch.Generator().manual_seed(seed)
    one, other = (torch.randn(_NUM_PAIRS, DIMENSIONS, generator=generator) for _ in range(2))
    chance = torch.sigmoid((gold(one) - gold(other)) / LABEL_NOISE)
    labels = (torch.rand(_NUM_PAIRS, generator=generator) < chance).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = torch.nn.Sequential(
            torch.nn.Linear(DIMENSIONS, _HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(_HIDDEN, _HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(_HIDDEN, 1),
        )
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=0.01)
    for _ in range(_FIT_STEPS):
        rows = torch.randint(_NUM_PAIRS, (_NUM_ANSWERS,), generator=generator)
        margins = (network(one[rows]) - network(other[rows]))[:, 0]
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(margins, labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return standardised(lambda answers: network(answers)[:, 0], seed=seed)


def standardised(value: Value, *, seed: int) -> Value:
    """Return the value with mean 0 and standard deviation 1 over the start model's answers."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        found = value(torch.randn(_NUM_FOR_SCALE, DIMENSIONS, generator=generator))
    mean, deviation = found.mean(), found.std()
    return lambda answers: (value(answers) - mean) / deviation


@dataclass(frozen=True)
class Moment:
    """The policy before a step.

    Attributes:
        mu: [DIMENSIONS], the mean of its answers.
        gold: their mean gold reward.
        length: mean of the first dimension over some held-out answers.
        disagreement: mean standard deviation of several reward models on these; 0 without such.
    """

    step: int
    mu: Tensor
    gold: float
    length: float
    disagreement: float


def climb(
    reward: Value, gold: Value, *, seed: int, num_steps: int, ensemble: tuple[Value, ...] = ()
) -> Iterator[Moment]:
    """Yield the policy at each step of a training that climbs `reward`, from the start model on."""
    generator = torch.Generator().manual_seed(seed + 999)
    truth = torch.randn(_NUM_FOR_TRUTH, DIMENSIONS, generator=torch.Generator().manual_seed(1))
    mu = torch.zeros(DIMENSIONS, requires_grad=True)
    for step in range(num_steps + 1):
        answers = mu + torch.randn(_NUM_ANSWERS, DIMENSIONS, generator=generator)
        (gradient,) = torch.autograd.grad(reward(answers).mean(), mu)
        with torch.no_grad():
            held_out = mu + torch.randn(_NUM_ANSWERS, DIMENSIONS, generator=generator)
            apart = torch.stack([value(held_out) for value in ensemble]).std(0).mean() if ensemble else torch.zeros(())
            yield Moment(
                step, mu.detach().clone(), float(gold(mu + truth).mean()), float(held_out[:, 0].mean()), float(apart)
            )
            mu += _STEP_SIZE * gradient / gradient.norm()
