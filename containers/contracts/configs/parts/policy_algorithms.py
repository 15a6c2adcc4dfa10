"""The on-policy algorithms as tables of parts: what each paper says, and which parts cannot be combined.

A loss here is the sum over tokens of weight × objective. An algorithm chooses how rewards become advantages, over what
the ratio of new and old policy is taken, how the ratio is limited, what a token weighs, and where the KL to the
reference goes. `containers.losses` has the functions behind the names.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model

from containers.contracts.base import Fraction, Frozen, Positive, Weight
from containers.contracts.registries import Registry

# Each takes log-probabilities, ratios, advantages and the parts, and returns the objective of each token and whether
# its ratio was limited.
OBJECTIVES = Registry(
    {
        "clipped": "containers.losses.clipped:clipped",
        "capped": "containers.losses.capped:capped",
        "soft": "containers.losses.soft:soft",
    }
)
# Rounds of generation after which a step that `refill` cannot fill ends the training; verl has 10 too.
MOST_ROUNDS = 10
Advantage = Literal["leave_one_out", "group", "group_spread", "batch_spread", "gae"]
RatioOver = Literal["token", "completion", "completion_mean"]
LossWeights = Literal["completion", "token", "constant"]
KlPlace = Literal["reward", "token_reward", "loss"]
KlEstimator = Literal["k1", "k2", "k3"]
if TYPE_CHECKING:
    Objective = str
else:
    Objective = Literal[tuple(OBJECTIVES)]


class PolicyAlgorithm(Frozen):
    """The parts of one on-policy algorithm."""

    advantage: Advantage = Field(
        description="leave_one_out: reward less the mean of its siblings; group: less the mean of its group; "
        "group_spread: the same, divided by the group's standard deviation; batch_spread: less the mean of the whole "
        "rollout's tokens, divided by their standard deviation; gae: of each token, against what a critic expected, "
        "normalised in the same way"
    )
    ratio_over: RatioOver = Field(
        description="Probability under the policy by that when it was written: of a token, of a whole completion, or "
        "the geometric mean over the completion's tokens"
    )
    objective: Objective = Field(
        description="clipped: ratio × advantage, or with the ratio clipped where that is less; capped: log-probability "
        "× advantage × the ratio without gradient, at most clip_high; soft: advantage × a smooth gate of the ratio"
    )
    clip_low: Fraction = Field(description="The ratio is clipped at 1 - this; at 1, never. capped has no lower limit")
    clip_high: Positive = Field(description="The ratio is clipped at 1 + this; of capped, the cap itself")
    loss_weights: LossWeights = Field(
        description="completion: each completion weighs the same; token: each token of the step; constant: each token, "
        "by completions × max_completion_length"
    )
    kl_place: KlPlace = Field(
        description="Where beta × KL to the reference is: in the reward of the completion, in that of each token, or "
        "in the loss"
    )
    kl_estimator: KlEstimator = Field(
        description="Of the KL: k1: log ratio; k2: half its square; k3: exp(-k1) - 1 + k1. In a reward it is k1, "
        "except with gae"
    )
    beta: Weight = Field(description="Weight of the KL to the reference policy; 0: no reference is computed")
    refill: bool = Field(
        description="Generate again until the step is full of prompts whose completions differ in their reward"
    )
    overlong_fraction: Fraction = Field(
        description="The last part of max_completion_length, in which the reward falls by up to overlong_penalty"
    )
    overlong_penalty: Weight = Field(description="Subtracted from the reward of a completion of maximum length")
    entropy_weight: Weight = Field(description="The mean entropy of the tokens, times this, is taken off the loss")
    gae_discount: Fraction = Field(description="γ of gae: what comes a token later counts so much")
    gae_lambda: Fraction = Field(description="λ of gae: 1 trusts rewards alone, 0 the critic's next value")


_RLOO = PolicyAlgorithm(
    advantage="leave_one_out",
    ratio_over="completion",
    objective="clipped",
    clip_low=0.2,
    clip_high=0.2,
    loss_weights="completion",
    kl_place="reward",
    kl_estimator="k1",
    beta=0.05,
    refill=False,
    overlong_fraction=0.0,
    overlong_penalty=0.0,
    entropy_weight=0.0,
    gae_discount=1.0,
    gae_lambda=0.95,
)
_GRPO = _RLOO.model_copy(
    update={
        "advantage": "group_spread",
        "ratio_over": "token",
        "kl_place": "loss",
        "kl_estimator": "k3",
        "beta": 0.04,
    }
)
# Algorithm → its parts, each as its paper has them.
POLICY_ALGORITHMS: Mapping[str, PolicyAlgorithm] = {
    # Ahmadian et al. 2024, arXiv:2402.14740; clipped as TRL does, for several updates on one batch.
    "rloo": _RLOO,
    # Shao et al. 2024, arXiv:2402.03300.
    "grpo": _GRPO,
    # Liu et al. 2025, arXiv:2503.20783: no division by the spread, none by the completion's length.
    "dr_grpo": _GRPO.model_copy(update={"advantage": "group", "loss_weights": "constant", "beta": 0.0}),
    # Yu et al. 2025, arXiv:2503.14476: clip higher, dynamic sampling, token weights, overlong shaping (a fifth).
    "dapo": _GRPO.model_copy(
        update={
            "clip_high": 0.28,
            "loss_weights": "token",
            "beta": 0.0,
            "refill": True,
            "overlong_fraction": 0.2,
            "overlong_penalty": 1.0,
        }
    ),
    # Zheng et al. 2025, arXiv:2507.18071.
    "gspo": _GRPO.model_copy(
        update={"ratio_over": "completion_mean", "clip_low": 3e-4, "clip_high": 4e-4, "beta": 0.0}
    ),
    # MiniMax 2025, arXiv:2506.13585: the ratio has no lower limit; the cap is that of the paper's open recipes.
    "cispo": _GRPO.model_copy(
        update={"objective": "capped", "clip_low": 1.0, "clip_high": 5.0, "loss_weights": "token", "beta": 0.0}
    ),
    # Gao et al. 2025, arXiv:2511.20347.
    "sapo": _GRPO.model_copy(update={"objective": "soft", "beta": 0.0}),
    # Hu et al. 2025, arXiv:2501.03262, eq. 8 to 10.
    "reinforce++": _RLOO.model_copy(
        update={
            "advantage": "batch_spread",
            "ratio_over": "token",
            "loss_weights": "token",
            "kl_place": "token_reward",
            "beta": 0.001,
        }
    ),
    # Schulman et al. 2017, arXiv:1707.06347, with the KL in each token's reward and NeMo-Aligner's numbers.
    "ppo": _RLOO.model_copy(
        update={
            "advantage": "gae",
            "ratio_over": "token",
            "loss_weights": "token",
            "kl_place": "token_reward",
            "beta": 0.02,
        }
    ),
}
# Advantages of single tokens, for which siblings need not be compared.
OF_TOKENS = ("batch_spread", "gae")


def _left_out(name: str) -> tuple[Any, Any]:
    field = PolicyAlgorithm.model_fields[name]
    return Annotated[field.annotation, *field.metadata, name] | None, Field(None, description=field.description)


_PARTS: dict[str, Any] = {name: _left_out(name) for name in PolicyAlgorithm.model_fields if name != "beta"}
# The same parts in a configuration, each of which may be left out.
AlgorithmParts: type[Frozen] = create_model(
    "AlgorithmParts",
    __base__=Frozen,
    __doc__="Single parts of the algorithm; null: as its paper has them. `beta` is a key of its own.",
    **_PARTS,
)


def algorithm_with(name: str, *, parts: Frozen, beta: float | None) -> PolicyAlgorithm:
    """Return the parts of the algorithm of that name, with those that a configuration sets itself."""
    own = parts.model_dump(exclude_none=True)
    return POLICY_ALGORITHMS[name].model_copy(update=own if beta is None else own | {"beta": beta})


def contradictions(
    parts: PolicyAlgorithm, *, num_generations: int, adapts_beta: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield for each combination that makes no sense: its key in train_policy, and a sentence.

    Args:
        adapts_beta: whether beta follows the KL.
    """
    if adapts_beta and not parts.beta:
        yield "adaptive_kl", "multiplies beta, which is 0, so no KL is computed. Set beta, or leave it out."
    is_of_tokens = parts.advantage in OF_TOKENS
    if num_generations < 2 and not is_of_tokens:
        yield (
            "num_generations",
            f"{num_generations} is too few: the advantage {parts.advantage} compares the completions of a prompt. Use "
            "at least 2, or parts.advantage batch_spread or gae.",
        )
    if num_generations < 2 and parts.refill:
        yield "parts.refill", "compares the rewards of a prompt's completions: with num_generations 1 none differ."
    if parts.ratio_over != "token" and parts.loss_weights != "completion":
        yield (
            "parts.loss_weights",
            f"{parts.loss_weights} would weigh a completion by its length, although its ratio (parts.ratio_over "
            f"{parts.ratio_over}) is one for the whole completion. Use completion.",
        )
    if parts.objective == "capped" and parts.ratio_over != "token":
        yield (
            "parts.objective",
            f"capped weighs each token by its own ratio, and parts.ratio_over is {parts.ratio_over}. Use token.",
        )
    if parts.beta and (parts.kl_place == "token_reward") is not is_of_tokens and parts.kl_place != "loss":
        yield (
            "parts.kl_place",
            f"the advantage {parts.advantage} is of {'each token' if is_of_tokens else 'whole completions'}, and the "
            f"KL in the {parts.kl_place} is not. Use {'token_reward' if is_of_tokens else 'reward'}, or loss.",
        )
    if parts.advantage == "gae" and parts.ratio_over != "token":
        yield (
            "parts.ratio_over",
            f"{parts.ratio_over}: gae gives each token an advantage of its own, so the ratio is of a token. Use token.",
        )
    if parts.advantage != "gae" and (parts.gae_discount, parts.gae_lambda) != (_RLOO.gae_discount, _RLOO.gae_lambda):
        yield "parts.gae_lambda", "gae_discount and gae_lambda are read by parts.advantage gae alone. Leave them out."
    if parts.beta and parts.kl_place != "loss" and parts.kl_estimator != "k1" and parts.advantage != "gae":
        yield (
            "parts.kl_estimator",
            f"{parts.kl_estimator} is for a KL in the loss: in a reward its mean is not the KL's. Use k1, or "
            "parts.kl_place loss.",
        )
    if bool(parts.overlong_penalty) is not bool(parts.overlong_fraction):
        missing = "overlong_fraction" if parts.overlong_penalty else "overlong_penalty"
        yield f"parts.{missing}", "is 0, and the other of overlong_fraction and overlong_penalty is not: set both."


if TYPE_CHECKING:
    Algorithm = str
else:
    Algorithm = Literal[tuple(POLICY_ALGORITHMS)]
