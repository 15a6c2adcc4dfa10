"""Writes the conversations that filter_demonstrations keeps, and the records of what it dropped."""

from collections.abc import Collection, Sequence

from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.funnel import Funnel
from containers.contracts.names import TRAIN_DEMONSTRATIONS_FILE, VALIDATION_DEMONSTRATIONS_FILE
from containers.data.demonstrations.reading import DemonstrationSource, PlacedDemonstration
from containers.data.filters.output import of_every_funnel, write_records
from containers.data.filters.overlaps import Overlaps
from containers.data.funnel import FunnelCounter, counted
from containers.data.prompts.wording import as_told
from containers.data.sources import rows_read_by_group
from containers.data.tables import write_demonstrations
from containers.harness.context import StageContext


def write_demonstration_artifact(
    context: StageContext,
    config: FilterDemonstrationsConfig,
    rows: Sequence[PlacedDemonstration],
    *,
    held_out: Collection[str],
    counter: FunnelCounter,
    sources: Sequence[DemonstrationSource],
    overlaps: Overlaps,
) -> Funnel:
    """Write tables, records and the plot; returns the funnel.

    Args:
        held_out: prompt ids of the validation rows.
    """
    train = [item for item in rows if item.row.prompt_id not in held_out]
    validation = [item for item in rows if item.row.prompt_id in held_out]
    for file, items in ((TRAIN_DEMONSTRATIONS_FILE, train), (VALIDATION_DEMONSTRATIONS_FILE, validation)):
        kept = (item.row for item in items)
        write_demonstrations(context.output / file, (row._replace(prompt=as_told(row.prompt, config)) for row in kept))
    funnel = Funnel(
        **of_every_funnel(config, sources, counter=counter, overlaps=overlaps),
        kind="demonstrations",
        train_demonstrations=len(train),
        validation_demonstrations=len(validation),
        num_answers=sum(1 + sum(turn["role"] == "assistant" for turn in item.row.prompt) for item in rows),
        kept_by_domain=counted(item.row.domain for item in rows),
        **rows_read_by_group(sources),
        train_by_source=counted(item.source for item in train),
    )
    write_records(context.output, funnel, counter=counter, overlaps=overlaps)
    return funnel
