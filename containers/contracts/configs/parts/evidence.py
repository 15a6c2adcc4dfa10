"""Evidence while a policy trains: `train_policy.evidence`.

A reward that is optimised says less and less about what it stands for, and no curve of the training shows it (Gao et
al. 2022, arXiv:2210.10760). So the burden of proof is on the policy: judges that do not train it compare it with its
last trusted checkpoint, and that checkpoint is what the stage publishes.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from containers.contracts.base import BatchSize, Frozen, Name, Positive, Rows, Steps
from containers.contracts.configs.parts.judges import (
    EndpointJudge,
    Judge,
    LanguageModelJudge,
    PeopleJudge,
    same_judge,
)
from containers.contracts.configs.parts.rewards import OwnTerm, RewardModelTerm, RewardTerm

Correlation = Annotated[float, Field(ge=-1, le=1)]
# Looks of a run, unless it says after how many steps: so many, or fewer where they would take more than a twentieth of
# what is written.
LOOKS_OF_A_RUN = 8
_FEWEST_LOOKS, _SHARE_FOR_LOOKS = 4, 0.05
# Fewer held-out prompts say nothing about a policy.
FEWEST_PROMPTS = 8
_MOST_PROMPTS = 128
# Of few prompts at most a quarter is held out; of many a tenth.
_LARGEST_SHARE, _SMALLEST_SHARE, _WANTED_PROMPTS = 4, 10, 16


class EvidenceSettings(Frozen):
    """Whether the policy still gets better: looks by judges that do not train it, and what follows."""

    steps: Steps | None = Field(
        None,
        description="A look every so many steps; null: an eighth of the run, or up to a quarter where looks would "
        "write more than a twentieth of the run's completions",
    )
    judge: Name | None = Field(
        None,
        description="The one of evaluate_policy.judges that decides; null: the first that needs neither a language "
        "model nor people. For people, or one behind an address, the training saves its state and ends at each look, "
        "and goes on once they have judged",
    )
    num_prompts: Annotated[Rows, Field(ge=FEWEST_PROMPTS)] | None = Field(
        None, description="Prompts that train nothing, and only serve the looks; null: a tenth, at most 128"
    )
    num_pairs: BatchSize = Field(
        64, ge=8, description="Pairs of a look; twice as many, where these show neither gain nor loss"
    )
    patience: int = Field(
        2,
        ge=1,
        le=1000,
        description="Looks in a row without a gain over the trusted checkpoint, or one with a loss; then on_no_gain",
    )
    on_no_gain: Literal["stop", "roll_back", "note"] = Field(
        "stop",
        description="stop: training ends; roll_back: it goes on from the trusted checkpoint with twice the beta; note: "
        "it goes on, and its last step is published",
    )
    max_roll_backs: int = Field(2, ge=1, le=1000, description="After so many, training ends")
    minimum_rank_agreement: Correlation | None = Field(
        None,
        description="Rank correlation of reward and judge on the start model's answers, below which training does not "
        "begin; null: it is only shown",
    )
    on_limit_unjudged: Literal["stop", "note"] = Field(
        "stop",
        description="Without a judge, where a reward model gives rewards and a meter leaves its limit: stop: training "
        "ends, and the last step inside is published; note: it goes on",
    )
    maximum_kl: Positive | None = Field(
        None, description="Nats a completion; a policy that is farther away is looked at earlier; null: no limit"
    )
    judges: tuple[Judge, ...] = Field(
        (), description="Leave it out: the run puts those of evaluate_policy.judges here that can look at every turn"
    )


# The meters of the reward model pad an answer with this many times its length.
FILLER_TIMES = 2
# One completion of so many is measured, and at least so many of a step.
_MEASURED_OF, _FEWEST_MEASURED = 32, 2


def num_held_out(settings: EvidenceSettings, num_prompts: int) -> int:
    """Return how many of the training prompts serve the looks alone; 0: too few are left for that.

    Example: 128 of 30,000 prompts, 100 of 1,000, 16 of 100, 12 of 48, and none of 20.
    """
    few = min(_WANTED_PROMPTS, num_prompts // _LARGEST_SHARE)
    wanted = settings.num_prompts or min(_MOST_PROMPTS, max(few, num_prompts // _SMALLEST_SHARE))
    return wanted if FEWEST_PROMPTS <= wanted <= num_prompts // 2 else 0


def measured_of(num_completions: int) -> int:
    """Return on how many of a step's completions the meters of the reward model are measured: a few of many.

    Example: 16 of 512 completions, 2 of 16, and 1 of 1.
    """
    return min(num_completions, max(_FEWEST_MEASURED, num_completions // _MEASURED_OF))


def steps_between_looks(settings: EvidenceSettings, *, num_steps: int, completions_a_step: float) -> int:
    """Return after how many steps a look is due, at least one.

    Args:
        completions_a_step: written for a step, on average; less than are trained on where these are used again.

    Example: 100 steps of 512 completions have a look every 13 steps, of 128 completions every 25.
    """
    of_a_look = 2 * settings.num_pairs
    affordable = int(_SHARE_FOR_LOOKS * num_steps * completions_a_step / of_a_look) - 1  # the start model writes too
    looks = min(LOOKS_OF_A_RUN, max(_FEWEST_LOOKS, affordable))
    return settings.steps or math.ceil(num_steps / looks)


def evidence_judges(
    settings: EvidenceSettings, judges: Sequence[Judge], rewards: Sequence[RewardTerm]
) -> tuple[Judge, ...]:
    """Return the judges that look while the policy trains, the one that decides first.

    Without one of `judges`, a reward that compares with reference answers decides: on other prompts than it trains on.
    """
    able = [judge for judge in judges if not any(same_judge(judge, reward) for reward in rewards)]
    chosen = [judge for judge in able if judge.name == settings.judge]
    needs_no_model = [
        judge
        for judge in able
        if not isinstance(judge, LanguageModelJudge | EndpointJudge | PeopleJudge) and judge not in chosen
    ]
    verifiers = (
        _as_judge(reward) for reward in rewards if reward.needs_answer and not isinstance(reward, RewardModelTerm)
    )
    return (*chosen, *needs_no_model) or tuple(verifiers)


def _as_judge(reward: OwnTerm) -> Judge:
    """Return the reward without what only training reads."""
    kept: Judge = type(reward).model_validate(reward.model_dump(exclude={"weight", "clip", "only_if", "normalise"}))
    return kept


def evidence_contradictions(
    settings: EvidenceSettings, judges: Sequence[Judge], rewards: Sequence[RewardTerm], *, beta: float
) -> Iterator[tuple[str, str]]:
    """Yield for each mistake: its key in train_policy.evidence, and a sentence.

    Args:
        judges: evaluate_policy.judges.
        beta: weight of the KL to the reference.
    """
    if settings.judges:
        yield (
            "judges",
            "is filled in by the run from evaluate_policy.judges. Name them there, and leave it out here.",
        )
    named = next((judge for judge in judges if judge.name == settings.judge), None)
    if named is not None and any(same_judge(named, reward) for reward in rewards):
        yield "judge", f"{named.name} is one of the rewards that train the policy. Name a judge that is not."
    if isinstance(named, LanguageModelJudge) and named.engine == "vllm":
        yield (
            "judge",
            f"{named.name} is computed by vLLM, which would take the memory that the training needs. Set its engine "
            "to transformers, or name a judge behind an address.",
        )
    if settings.minimum_rank_agreement is not None:
        looking = evidence_judges(settings, judges, rewards)
        if not looking:
            yield (
                "minimum_rank_agreement",
                "compares the reward with a judge, and no judge looks while the policy trains. Name one in "
                "evaluate_policy.judges, or leave it out.",
            )
        elif isinstance(looking[0], LanguageModelJudge | EndpointJudge | PeopleJudge):
            yield (
                "minimum_rank_agreement",
                f"compares the reward with values, and {looking[0].name} compares pairs. Name another judge, or leave "
                "it out.",
            )
    if settings.on_no_gain == "roll_back" and not beta:
        yield (
            "on_no_gain",
            "roll_back doubles the weight of the KL, and train_policy.beta is 0. Set beta, or use stop.",
        )
