"""Examples that are longer than a stage reads: how many, what is left of an epoch, and whether that is too little."""

from collections.abc import Iterator
from dataclasses import dataclass

from containers.contracts.names import StageName
from tasks.plan.figures import Figure, PlanContext
from tasks.plan.inputs.data import Count
from tasks.plan.load import sft_examples

# A share of the examples whose loss is worth a warning: of tokens that were counted, and of guessed ones.
_MANY, _MANY_GUESSED = 0.05, 0.25


@dataclass(frozen=True)
class TooLong:
    """What of the examples looked at is left out.

    Attributes:
        key: the setting that decides it, inside its stage.
        limit: its value, tokens.
        unit: what an example is.
    """

    key: str
    limit: int
    unit: str
    num_seen: int
    num_left_out: int
    shortest: int

    @property
    def share(self) -> float:
        """Of those looked at."""
        return self.num_left_out / self.num_seen


def too_long(context: PlanContext, stage: StageName) -> TooLong | None:
    """What the stage leaves out of the examples that were looked at; None where none were, or it has no limit."""
    lengths, config = context.lengths, context.config
    if lengths is None:
        return None
    pairs = lengths.pairs
    if stage is StageName.TRAIN_SFT and config.train_sft is not None:
        limit, sides = config.train_sft.max_length, 2 if config.train_sft.completions == "both" else 1
        seen, fit = sides * len(pairs), len(sft_examples(context, config.train_sft))
        shortest = min(pair.prompt + min(pair.chosen, pair.rejected) for pair in pairs)
        return TooLong("max_length", limit, "completions", seen, seen - fit, shortest)
    if stage is StageName.TRAIN_REWARD_MODEL:
        limit = config.train_reward_model.max_length
        fit, shortest = len(lengths.fitting(limit)), min(pair.longest for pair in pairs)
        return TooLong("max_length", limit, "pairs", len(pairs), len(pairs) - fit, shortest)
    if stage is StageName.TRAIN_POLICY:
        limit = config.train_policy.max_prompt_length
        fit, shortest = len(lengths.fitting_prompts(limit)), min(pair.prompt for pair in pairs)
        return TooLong("max_prompt_length", limit, "prompts", len(pairs), len(pairs) - fit, shortest)
    return None


def kept(context: PlanContext, examples: Count | None, stage: StageName) -> Count | None:
    """The examples without those that are too long, where their tokens were counted and not guessed."""
    found = too_long(context, stage)
    if examples is None or found is None or context.lengths is None or not context.lengths.are_counted:
        return examples
    if not found.num_left_out or found.share == 1:
        return examples
    return Count(Count(examples.value, "estimated").share(1 - found.share).value, "estimated")


def too_long_figures(context: PlanContext, stage: StageName) -> Iterator[Figure]:
    """How many of the examples looked at are too long, for a stage that has a limit."""
    found = too_long(context, stage)
    if found is not None:
        note = f"{found.share:.1%} of them, left out of the training" if found.num_left_out else ""
        unit = f"of the {found.num_seen:,} {found.unit} looked at"
        yield Figure(f"over {found.key} {found.limit:,}", found.num_left_out, unit, "estimated", note)


def too_long_troubles(context: PlanContext, stage: StageName) -> Iterator[str]:
    """A sentence where a stage leaves many examples out, or all."""
    found = too_long(context, stage)
    counted = context.lengths is not None and context.lengths.are_counted
    if found is None or found.share < (_MANY if counted else _MANY_GUESSED):
        return
    key = f"{stage.value}.{found.key}"
    if found.share == 1:
        yield (
            f"{key}: not one of the {found.num_seen:,} {found.unit} looked at fits into {found.limit:,} tokens; the "
            f"shortest has about {found.shortest:,}. Raise it."
        )
    else:
        yield (
            f"{key}: {found.share:.1%} of the {found.num_seen:,} {found.unit} looked at are longer than "
            f"{found.limit:,} tokens and would be left out. Raise it where that is too many."
        )
