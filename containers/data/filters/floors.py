"""Errors for too few pairs left: they show the funnel of the short source and the setting that dropped the most."""

from collections.abc import Mapping
from dataclasses import dataclass

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.funnel import FunnelStep
from containers.data.funnel import FunnelCounter, Split, Tally, funnel_table
from containers.harness.errors import BadDataError

# With more of the prompts in one group, no share that is held out comes near the one that was wanted.
_MOST_ALIKE = 0.5
_SOURCE_NAMES: dict[Split, str] = {"train": "training source", "validation": "validation source"}


@dataclass(frozen=True)
class PairsLeft:
    """Pairs that passed every filter, by what they are for; `set_aside` are those whose prompts went to the policy.

    Attributes:
        share_alike: of all prompts, the share in the largest group that a split keeps on one side.
    """

    train: int
    validation: int
    set_aside: int
    share_alike: float = 0.0


def check_floors(
    config: FilterDatasetConfig, *, counter: FunnelCounter, left: PairsLeft, languages: Mapping[Split, str]
) -> None:
    """Refuse to go on with fewer pairs than the config demands.

    Args:
        languages: the values seen in the language column of each source, as text.

    Raises:
        BadDataError: with the funnel of each source that fell short as a table, and the settings to look at.
    """
    short: dict[Split, str] = {}
    if left.train < config.minimum_train_pairs:
        short["train"] = (
            f"{left.train:,} training pairs (filter_dataset.minimum_train_pairs: {config.minimum_train_pairs:,})"
        )
    if left.validation < config.minimum_validation_pairs:
        short["validation"] = (
            f"{left.validation:,} validation pairs "
            f"(filter_dataset.minimum_validation_pairs: {config.minimum_validation_pairs:,})"
        )
    if not short:
        return
    # Without a validation source, the validation pairs come out of the training source.
    judged = {split if split in counter.of_source else "train": None for split in short}
    tables = "\n\n".join(_table(counter, source) for source in judged)
    are_enough = left.train + left.validation + left.set_aside >= (
        config.minimum_train_pairs + config.minimum_validation_pairs
    )
    if are_enough and "validation" not in counter.of_source and left.share_alike > _MOST_ALIKE:
        advice = (
            f"{left.share_alike:.0%} of the prompts are alike, so a split keeps them on one side: bring other prompts "
            "or a validation file, or set filter_dataset.similar_prompts to report, which divides them."
        )
    elif list(short) == ["validation"] and "validation" not in counter.of_source:
        advice = (
            f"There is no validation file, so about {config.validation_fraction:.0%} of the prompts are held out: "
            f"raise filter_dataset.validation_fraction."
        )
    else:
        advice = "\n".join(
            _advice(config, tally=counter.of_source[source], name=_SOURCE_NAMES[source], languages=languages[source])
            for source in judged
        )
    raise BadDataError(
        f"Too few rows are left: {' and '.join(short.values())}.\n\n{tables}\n\n"
        f"Of the {counter.total.rows_left:,} rows left, {left.train:,} are for training, {left.validation:,} for "
        f"validation, {left.set_aside:,} set aside with their prompts for the policy (policy_prompt_fraction "
        f"{config.policy_prompt_fraction:g}).\n{advice}"
    )


def check_policy_prompts(config: FilterDatasetConfig, *, train_prompts: int, eval_prompts: int) -> None:
    """Refuse to go on with too few prompts for the policy, which would show only after all training.

    Raises:
        BadDataError: with the numbers, and the settings to look at.
    """
    wanted = [eval_prompts, *([train_prompts] if config.eval_prompt_fraction < 1 else [])]
    if min(wanted) >= config.minimum_policy_prompts:
        return
    raise BadDataError(
        f"Too few prompts for the policy: {train_prompts:,} to train on and {eval_prompts:,} to judge it on; at least "
        f"{config.minimum_policy_prompts:,} of each are wanted (filter_dataset.minimum_policy_prompts). Raise "
        f"filter_dataset.policy_prompt_fraction (now {config.policy_prompt_fraction:g}) or "
        f"policy_eval_prompt_fraction (now {config.eval_prompt_fraction:g}), or bring more data."
    )


def _table(counter: FunnelCounter, source: Split) -> str:
    """Return the funnel of one source as text, with the source's name if there are two."""
    table = funnel_table(counter.of_source[source])
    return table if len(counter.of_source) == 1 else f"The {_SOURCE_NAMES[source]}:\n{table}"


def _advice(config: FilterDatasetConfig, *, tally: Tally, name: str, languages: str) -> str:
    """What to do about the filter that dropped the most rows of a source."""
    if not tally.rows_read:
        return f"The {name} holds no row at all. Check the path or the file of the dataset."
    if 2 * tally.num_dropped < tally.rows_read:
        return (
            f"The filters took less than half of the {name}. Bring more data, or lower the floors or the shares that "
            f"are held out."
        )
    worst = max(tally.steps, key=lambda step: step.dropped)
    return f"`{worst.reason}` dropped the most of the {name}. " + _advice_for(worst, config, languages=languages)


def _advice_for(step: FunnelStep, config: FilterDatasetConfig, *, languages: str) -> str:
    asked = ", ".join(config.languages)
    advice = {
        "language_column": f"`language` holds: {languages}. filter_dataset.languages asks for: {asked}.",
        "code_rows": "filter_dataset.code_rows is `drop`; `keep` judges code rows by the prose of their prompt.",
        "detected_language": f"The texts themselves are not in {asked}. Set filter_dataset.languages to what they are.",
        "over_long_characters": f"filter_dataset.max_characters is {config.max_characters:,}; raise it to keep them.",
        "over_long_tokens": f"filter_dataset.max_tokens is {config.max_tokens}; raise it to keep them.",
        "sampled_away": f"filter_dataset.max_rows is {config.max_rows}; raise it or leave it out.",
        "tie": "These rows prefer neither response, so they teach no order. Use data in which one is preferred.",
        "prompt_in_validation": "The validation source has the same prompts. Use one with other prompts.",
    }
    return advice.get(step.reason, f"Examples: {'; '.join(step.examples[:2])}")
