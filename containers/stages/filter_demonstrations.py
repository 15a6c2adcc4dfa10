"""filter_demonstrations: turn rows into conversations to fine-tune on, as parquet.

Every row is kept, or counted under one named reason; the records are those of filter_dataset.
"""

from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.funnel import Funnel
from containers.contracts.outcome import Metric
from containers.data.demonstrations.held_out import held_out_prompts
from containers.data.demonstrations.output import write_demonstration_artifact
from containers.data.demonstrations.reading import DEMONSTRATIONS, PlacedDemonstration
from containers.data.filters.suites import suite_prompts
from containers.data.filters.text_chain import TextChain
from containers.data.filters.text_floors import Floor, check_text_floors
from containers.data.funnel import dropped_text
from containers.data.language import LanguageJudge
from containers.data.sources import counter_of, languages_seen
from containers.data.splits import held_out_groups
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError


def run(context: StageContext) -> tuple[Metric, ...]:
    """Filter, split and write the conversations; return the counts.

    Raises:
        BadDataError: unknown form, damaged file, too many malformed rows, or fewer rows than the config's floors; the
            message shows the figures.
        BadConfigError: an unknown language or suite.
    """
    config = context.spec.config
    if not isinstance(config, FilterDemonstrationsConfig):
        raise BadConfigError(f"filter_demonstrations was given the configuration of {config.stage}.")
    sources = DEMONSTRATIONS.sources(context, config)
    counter = counter_of(sources)
    languages = languages_seen([row for source in sources for row in source.rows])
    chain = TextChain[PlacedDemonstration](config, counter=counter, seed=context.spec.seed)
    rows = _filtered([row for source in sources for row in source.rows], chain, context=context, config=config)
    held_out = held_out_groups(
        rows,
        fraction=config.validation_fraction,
        seed=context.spec.seed,
        purpose="demonstration validation",
        sources=sources,
        groups=chain.groups,
    )
    num_validation = sum(item.row.prompt_id in held_out for item in rows)
    counter.check({"train": len(rows) - num_validation, "validation": num_validation})
    check_text_floors(
        config,
        (
            Floor(
                "conversations to train on", len(rows) - num_validation, config.minimum_train_rows, "minimum_train_rows"
            ),
            Floor(
                "conversations to choose a checkpoint by",
                num_validation,
                config.minimum_validation_rows,
                "minimum_validation_rows",
            ),
        ),
        counter=counter,
        languages=languages,
        share="validation_fraction",
        advice={"held_out_prompt": "The rows have prompts that judge the policy or the reward model of this run."},
    )
    funnel = write_demonstration_artifact(
        context, config, rows, held_out=held_out, counter=counter, sources=sources, overlaps=chain.overlaps
    )
    context.recorder.note(
        f"{funnel.rows_read:,} rows read, {dropped_text(counter.total)}; {funnel.train_demonstrations:,} conversations "
        f"to train on, {funnel.validation_demonstrations:,} to choose a checkpoint by, with {funnel.num_answers:,} "
        f"answers."
    )
    return _metrics(funnel, num_malformed=sum(source.num_malformed for source in sources))


def _filtered(
    rows: list[PlacedDemonstration],
    chain: TextChain[PlacedDemonstration],
    *,
    context: StageContext,
    config: FilterDemonstrationsConfig,
) -> list[PlacedDemonstration]:
    """Return the rows that pass every filter; each filter is counted."""
    judge = LanguageJudge(config.languages, stage=config.stage) if config.check_language_on_text else None
    suites, others = suite_prompts(context, config), held_out_prompts(context)
    rows = chain.by_language_column(rows)
    if judge is not None:
        rows = chain.by_detected_language(rows, judge=judge, recorder=context.recorder)
    rows = chain.by_validation_prompts(chain.by_duplicates(chain.by_flaws(rows)))
    if others.prompts:
        rows = chain.by_held_out(rows, others.ids, others.prompts)
    return chain.by_sampling(chain.by_mixture(chain.by_overlaps(rows, suites)))


def _metrics(funnel: Funnel, *, num_malformed: int) -> tuple[Metric, ...]:
    read = funnel.rows_read
    num_dropped = sum(step.dropped for step in funnel.steps)
    counts = {
        "rows_read": (read, "rows"),
        "train_demonstrations": (funnel.train_demonstrations, "conversations"),
        "validation_demonstrations": (funnel.validation_demonstrations, "conversations"),
        "answers": (funnel.num_answers, "answers"),
    }
    fractions = {"dropped_fraction": num_dropped / read, "malformed_fraction": num_malformed / read}
    return (
        *(Metric(name=name, value=value, unit=unit, count=read) for name, (value, unit) in counts.items()),
        *(Metric(name=name, value=value, unit="fraction", count=read) for name, value in fractions.items()),
    )
