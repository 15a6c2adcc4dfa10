"""Too few pairs left: the error that shows the funnel and says which setting took the most."""

from containers.contracts.records import FunnelStep
from containers.contracts.stage_configs import FilterDatasetConfig
from containers.stages.errors import BadDataError
from containers.stages.funnel import FunnelCounter, funnel_table


def check_floors(
    config: FilterDatasetConfig,
    *,
    counter: FunnelCounter,
    train_pairs: int,
    validation_pairs: int,
    set_aside: int,
    languages: str,
    has_validation_source: bool,
) -> None:
    """Refuse to go on with fewer pairs than the config demands.

    Args:
        set_aside: good pairs whose prompts went to the policy.
        languages: the values seen in the language column, in words.

    Raises:
        BadDataError: with the funnel as a table, and the settings to look at.
    """
    short = []
    if train_pairs < config.minimum_train_pairs:
        short.append(
            f"{train_pairs:,} training pairs (filter_dataset.minimum_train_pairs: {config.minimum_train_pairs:,})"
        )
    if validation_pairs < config.minimum_validation_pairs:
        short.append(
            f"{validation_pairs:,} validation pairs "
            f"(filter_dataset.minimum_validation_pairs: {config.minimum_validation_pairs:,})"
        )
    if short:
        message = _too_few_pairs(
            config,
            short,
            counter=counter,
            train_pairs=train_pairs,
            validation_pairs=validation_pairs,
            set_aside=set_aside,
            languages=languages,
            has_validation_source=has_validation_source,
        )
        raise BadDataError(message)


def check_policy_prompts(config: FilterDatasetConfig, *, train_prompts: int, eval_prompts: int) -> None:
    """Refuse to go on with too few prompts for the policy: otherwise that shows only after everything is trained.

    Raises:
        BadDataError: with the numbers, and the settings to look at.
    """
    if min(train_prompts, eval_prompts) >= config.minimum_policy_prompts:
        return
    raise BadDataError(
        f"Too few prompts for the policy: {train_prompts:,} to train on and {eval_prompts:,} to judge it on; at least "
        f"{config.minimum_policy_prompts:,} of each are wanted (filter_dataset.minimum_policy_prompts). Raise "
        f"filter_dataset.policy_prompt_fraction (now {config.policy_prompt_fraction:g}) or "
        f"policy_eval_prompt_fraction (now {config.policy_eval_prompt_fraction:g}), or bring more data."
    )


def _too_few_pairs(
    config: FilterDatasetConfig,
    short: list[str],
    *,
    counter: FunnelCounter,
    train_pairs: int,
    validation_pairs: int,
    set_aside: int,
    languages: str,
    has_validation_source: bool,
) -> str:
    too_few_held_out = validation_pairs < config.minimum_validation_pairs and not has_validation_source
    if too_few_held_out and train_pairs >= config.minimum_train_pairs:
        advice = (
            f"There is no validation file, so about {config.validation_fraction:.0%} of the prompts are held out: "
            f"raise filter_dataset.validation_fraction."
        )
    else:
        advice = _advice(config, counter=counter, languages=languages)
    return (
        f"Too few rows are left: {' and '.join(short)}.\n\n"
        f"{funnel_table(counter.steps, rows_read=counter.rows_read)}\n\n"
        f"Of the {counter.rows_left:,} rows left, {train_pairs:,} are for training, {validation_pairs:,} for "
        f"validation, {set_aside:,} set aside with their prompts for the policy (policy_prompt_fraction "
        f"{config.policy_prompt_fraction:g}).\n{advice}"
    )


def _advice(config: FilterDatasetConfig, *, counter: FunnelCounter, languages: str) -> str:
    """What to do about the filter that dropped the most."""
    if not counter.rows_read:
        return "The source holds no row at all. Check the path or the file of the dataset."
    worst = max(counter.steps, key=lambda step: step.dropped, default=None)
    if worst is None or worst.dropped < counter.rows_left:
        return "The filters took less than half. Bring more data, or lower the floors or the shares that are held out."
    return f"`{worst.reason}` dropped the most. " + _advice_for(worst, config, languages=languages)


def _advice_for(step: FunnelStep, config: FilterDatasetConfig, *, languages: str) -> str:
    asked = ", ".join(config.languages)
    advice = {
        "language_column": f"`language` holds: {languages}. filter_dataset.languages asks for: {asked}.",
        "code_rows": "filter_dataset.code_rows is `drop`; `keep` judges code rows by the prose of their prompt.",
        "detected_language": f"The texts themselves are not in {asked}. Set filter_dataset.languages to what they are.",
        "over_long_characters": f"filter_dataset.max_characters is {config.max_characters:,}.",
        "over_long_tokens": f"filter_dataset.max_tokens is {config.max_tokens}.",
        "sampled_away": f"filter_dataset.max_rows is {config.max_rows}.",
        "tie": "Most rows prefer neither response: they teach no order.",
    }
    return advice.get(step.reason, f"Examples: {'; '.join(step.examples[:2])}")
