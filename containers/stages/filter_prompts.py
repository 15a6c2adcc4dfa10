"""filter_prompts: turn rows of a prompt set into prompts to train and judge the policy, as parquet.

Every row is kept, or counted under one named reason; the records are those of filter_dataset.
"""

from containers.contracts.configs.filter_dataset import ValidationParts
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.funnel import Funnel
from containers.contracts.outcome import Metric
from containers.data.filters.similar_prompts import PromptGroups
from containers.data.filters.suites import suite_prompts
from containers.data.filters.text_floors import Floor, check_text_floors
from containers.data.funnel import FunnelCounter, dropped_text
from containers.data.language import LanguageJudge
from containers.data.prompts.chain import PromptChain, Prompts
from containers.data.prompts.output import SplitPrompts, write_prompt_artifact
from containers.data.prompts.reading import PROMPTS, PromptSource
from containers.data.sources import counter_of, languages_seen
from containers.data.splits import PolicyPrompts, divide_held_out, held_out_groups
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError


def run(context: StageContext) -> tuple[Metric, ...]:
    """Filter, split and write the prompts; return the counts.

    Raises:
        BadDataError: unknown form, damaged file, too many malformed rows, or fewer prompts than the config's floors;
            the message shows the figures.
        BadConfigError: an unknown language or suite.
    """
    config = context.spec.config
    if not isinstance(config, FilterPromptsConfig):
        raise BadConfigError(f"filter_prompts was given the configuration of {config.stage}.")
    sources = PROMPTS.sources(context, config, keep=config.keep_columns)
    counter = counter_of(sources)
    languages = languages_seen([row for source in sources for row in source.rows])
    chain = PromptChain(config, counter=counter, seed=context.spec.seed)
    rows = _filtered([row for source in sources for row in source.rows], chain, context=context, config=config)
    split = _divided(rows, config=config, seed=context.spec.seed, sources=sources, groups=chain.groups)
    _check(split, counter=counter, groups=chain.groups)
    check_text_floors(
        config,
        _floors(split, config),
        counter=counter,
        languages=languages,
        share="evaluation_fraction",
        advice=_advice(config),
    )
    funnel = write_prompt_artifact(context, config, split, counter=counter, sources=sources, overlaps=chain.overlaps)
    context.recorder.note(
        f"{funnel.rows_read:,} rows read, {dropped_text(counter.total)}; {funnel.policy_train_prompts:,} prompts to "
        f"train the policy, {funnel.policy_eval_prompts:,} to judge it; {funnel.num_with_answer:,} have an answer."
    )
    return _metrics(funnel, counter=counter, sources=sources)


def _filtered(rows: Prompts, chain: PromptChain, *, context: StageContext, config: FilterPromptsConfig) -> Prompts:
    """Return the rows that pass every filter; each filter is counted."""
    judge = LanguageJudge(config.languages, stage=config.stage) if config.check_language_on_text else None
    suites = suite_prompts(context, config)
    rows = chain.by_language_column(rows)
    if judge is not None:
        rows = chain.by_detected_language(rows, judge=judge, recorder=context.recorder)
    rows = chain.by_answer(rows)
    rows = chain.by_flaws(rows)
    rows = chain.by_overlaps(chain.by_repetition(rows), suites)
    return chain.by_sampling(chain.by_mixture(rows))


def _divided(
    rows: Prompts, *, config: FilterPromptsConfig, seed: int, sources: list[PromptSource], groups: PromptGroups
) -> SplitPrompts:
    """Split the prompts: validation files, or a share of the prompts of other sources; a group stays together."""
    fraction = config.evaluation_fraction
    judged = held_out_groups(
        rows, fraction=fraction, seed=seed, purpose="policy evaluation", sources=sources, groups=groups
    )
    parts = ValidationParts(
        tune=0, test=max(1 - config.frozen_share, 1e-9), frozen=config.frozen_share,
        minimum_prompts=config.minimum_frozen_prompts,
    )  # fmt: skip
    divided = divide_held_out(judged, parts, seed=seed, groups=groups)
    train = {item.row.prompt_id for item in rows} - judged
    return SplitPrompts(rows, PolicyPrompts(train=frozenset(train), evaluation=divided.test, frozen=divided.frozen))


def _check(split: SplitPrompts, *, counter: FunnelCounter, groups: PromptGroups) -> None:
    """Check that no row was lost and that no prompt, and none like it, is both trained on and judged by.

    Raises:
        RuntimeError: one check fails; a fault of this program, not of the data.
    """
    held_out = split.ids.evaluation | split.ids.frozen
    counter.check({"train": len(split.of(split.ids.train)), "held out": len(split.of(held_out))})
    if {groups.of(prompt_id) for prompt_id in split.ids.train} & {groups.of(prompt_id) for prompt_id in held_out}:
        raise RuntimeError("A prompt is on two sides of the split. This is a fault of filter_prompts; report it.")


def _floors(split: SplitPrompts, config: FilterPromptsConfig) -> tuple[Floor, ...]:
    return (
        Floor("prompts to train on", len(split.ids.train), config.minimum_train_prompts, "minimum_train_prompts"),
        Floor(
            "prompts to judge the policy on",
            len(split.ids.evaluation),
            config.minimum_evaluation_prompts,
            "minimum_evaluation_prompts",
        ),
    )


def _advice(config: FilterPromptsConfig) -> dict[str, str]:
    return {
        "without_answer": "A reward compares with a reference answer, and these rows have none that is known: final_"
        "answer, answer, ground_truth, reward_model.ground_truth or solution. Rename the column, or use other rewards.",
        "difficulty": f"filter_prompts keeps difficulties from {config.min_difficulty} to {config.max_difficulty}.",
        "contradictory_answers": "The same prompt has different answers. Correct the data.",
    }


def _metrics(funnel: Funnel, *, counter: FunnelCounter, sources: list[PromptSource]) -> tuple[Metric, ...]:
    read = funnel.rows_read
    counts = {
        "rows_read": (read, "rows"),
        "policy_train_prompts": (funnel.policy_train_prompts, "prompts"),
        "policy_eval_prompts": (funnel.policy_eval_prompts, "prompts"),
        "policy_frozen_prompts": (funnel.policy_frozen_prompts, "prompts"),
        "prompts_with_answer": (funnel.num_with_answer, "prompts"),
    }
    fractions = {
        "dropped_fraction": counter.total.num_dropped / read,
        "malformed_fraction": sum(source.num_malformed for source in sources) / read,
    }
    return (
        *(Metric(name=name, value=value, unit=unit, count=read) for name, (value, unit) in counts.items()),
        *(Metric(name=name, value=value, unit="fraction", count=read) for name, value in fractions.items()),
    )
