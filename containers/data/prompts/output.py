"""Writes the prompts that filter_prompts keeps, and the records of what it dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.funnel import Funnel
from containers.contracts.names import (
    POLICY_EVAL_PROMPTS_FILE,
    POLICY_FROZEN_PROMPTS_FILE,
    POLICY_TRAIN_PROMPTS_FILE,
)
from containers.data.filters.output import of_every_funnel, write_records
from containers.data.filters.overlaps import Overlaps
from containers.data.funnel import FunnelCounter, counted
from containers.data.prompts.chain import Prompts
from containers.data.prompts.reading import PromptSource
from containers.data.prompts.wording import as_asked
from containers.data.sources import rows_read_by_group
from containers.data.splits import PolicyPrompts
from containers.data.tables import write_prompts
from containers.harness.context import StageContext


@dataclass(frozen=True)
class SplitPrompts:
    """The kept rows; `ids` has the prompts of each purpose."""

    rows: Prompts
    ids: PolicyPrompts

    def of(self, ids: frozenset[str]) -> Prompts:
        """The rows with these prompts."""
        return [item for item in self.rows if item.row.prompt_id in ids]


def write_prompt_artifact(
    context: StageContext,
    config: FilterPromptsConfig,
    split: SplitPrompts,
    *,
    counter: FunnelCounter,
    sources: Sequence[PromptSource],
    overlaps: Overlaps,
) -> Funnel:
    """Write tables, records and the plot; returns the funnel."""
    parts = {
        POLICY_TRAIN_PROMPTS_FILE: split.of(split.ids.train),
        POLICY_EVAL_PROMPTS_FILE: split.of(split.ids.evaluation),
        POLICY_FROZEN_PROMPTS_FILE: split.of(split.ids.frozen),
    }
    for file, items in parts.items():
        rows = (item.row for item in items)
        write_prompts(context.output / file, (row._replace(prompt=as_asked(row.prompt, config)) for row in rows))
    has_frozen = split.ids.frozen != split.ids.evaluation
    funnel = Funnel(
        **of_every_funnel(config, sources, counter=counter, overlaps=overlaps),
        kind="prompts",
        policy_train_prompts=len(parts[POLICY_TRAIN_PROMPTS_FILE]),
        policy_eval_prompts=len(parts[POLICY_EVAL_PROMPTS_FILE]),
        policy_frozen_prompts=len(parts[POLICY_FROZEN_PROMPTS_FILE]) if has_frozen else 0,
        num_with_answer=sum(item.row.answer is not None for item in split.rows),
        kept_by_domain=counted(item.row.domain for item in split.rows),
        **rows_read_by_group(sources),
        train_by_source=counted(item.source for item in parts[POLICY_TRAIN_PROMPTS_FILE]),
    )
    write_records(context.output, funnel, counter=counter, overlaps=overlaps)
    return funnel
