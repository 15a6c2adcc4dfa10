"""Writes what filter_dataset keeps, and the records of what it dropped."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.contracts.configs.filter_dataset import FilterDatasetConfig, ValidationParts
from containers.contracts.configs.parts.row_filters import RowFilters
from containers.contracts.funnel import Funnel, PolarityCheck, ReferenceCheck, ValidationPart
from containers.contracts.names import (
    DROPPED_FILE,
    FROZEN_PAIRS_FILE,
    FUNNEL_FILE,
    FUNNEL_TABLE_FILE,
    PLOTS_FOLDER,
    POLICY_EVAL_PROMPTS_FILE,
    POLICY_FROZEN_PROMPTS_FILE,
    POLICY_TRAIN_PROMPTS_FILE,
    TEST_PAIRS_FILE,
    TRAIN_PAIRS_FILE,
    TUNE_PAIRS_FILE,
)
from containers.data.filters.overlaps import Overlaps
from containers.data.filters.pair_chain import Rows
from containers.data.funnel import UNKNOWN, FunnelCounter, counted
from containers.data.funnel_by_group import FUNNEL_PLOT_FILE, write_funnel_plot, write_funnel_table
from containers.data.language import detector_name
from containers.data.rows import PreferenceRow
from containers.data.sources import PairSource, PlacedRow, Source
from containers.data.splits import Parts, PolicyPrompts
from containers.data.tables import write_comparisons, write_pairs, write_prompt_texts, write_prompts
from containers.harness.context import StageContext

# NeMo-Aligner's names for the two files.
TRAIN_COMPARISONS_FILE = "train_comparisons.jsonl"
TEST_COMPARISONS_FILE = "test_comparisons.jsonl"
TRAIN_PROMPTS_FILE = "train_prompts.jsonl"
TEST_PROMPTS_FILE = "test_prompts.jsonl"


@dataclass(frozen=True)
class SplitRows:
    """The kept rows and prompts of each split; `parts` has the prompts of the validation rows by purpose."""

    train: Rows
    validation: Rows
    set_aside: Rows
    parts: Parts
    prompts: PolicyPrompts

    def rows_of(self, ids: frozenset[str]) -> Rows:
        """The validation rows with these prompts."""
        return [item for item in self.validation if item.row.prompt_id in ids]


@dataclass(frozen=True)
class Findings:
    """The findings of the checks and filters, for the records."""

    polarity: tuple[PolarityCheck, ...]
    reference: tuple[ReferenceCheck, ...]
    overlaps: Overlaps


def write_artifact(
    context: StageContext,
    config: FilterDatasetConfig,
    division: SplitRows,
    *,
    counter: FunnelCounter,
    sources: Sequence[PairSource],
    findings: Findings,
) -> Funnel:
    """Write tables, records and the plot; returns the funnel."""
    output = context.output
    write_pairs(output / TRAIN_PAIRS_FILE, _rows(division.train))
    for file, ids in (
        (TUNE_PAIRS_FILE, division.parts.tune),
        (TEST_PAIRS_FILE, division.parts.test),
        (FROZEN_PAIRS_FILE, division.parts.frozen),
    ):
        write_pairs(output / file, _rows(division.rows_of(ids)))
    everything = _rows(division.train + division.validation + division.set_aside)
    prompts = {
        file: write_prompts(output / file, (row for row in everything if row.prompt_id in ids))
        for file, ids in (
            (POLICY_TRAIN_PROMPTS_FILE, division.prompts.train),
            (POLICY_EVAL_PROMPTS_FILE, division.prompts.evaluation),
            (POLICY_FROZEN_PROMPTS_FILE, division.prompts.frozen),
        )
    }
    funnel = _funnel(config, division, counter=counter, sources=sources, findings=findings, prompts=prompts)
    write_records(output, funnel, counter=counter, overlaps=findings.overlaps)
    if config.write_comparisons:
        _write_comparisons(context, division)
        _write_prompt_texts(context, division, everything)
    return funnel


def write_records(output: Path, funnel: Funnel, *, counter: FunnelCounter, overlaps: Overlaps) -> None:
    """Write what users read: the counts as JSON, table and plot, the rows that repeat others, and dropped rows."""
    (output / FUNNEL_FILE).write_text(funnel.model_dump_json(indent=2) + "\n", encoding="utf-8")
    write_funnel_table(output / FUNNEL_TABLE_FILE, funnel)
    (output / PLOTS_FOLDER).mkdir(exist_ok=True)
    write_funnel_plot(output / PLOTS_FOLDER / FUNNEL_PLOT_FILE, funnel)
    overlaps.write(output)
    lines = [json.dumps(example, ensure_ascii=False) + "\n" for example in counter.examples]
    (output / DROPPED_FILE).write_text("".join(lines), encoding="utf-8")


def _write_comparisons(context: StageContext, division: SplitRows) -> None:
    """Write training pairs, and the pairs that choose a checkpoint; those that certify are for no other training."""
    tune = division.rows_of(division.parts.tune)
    for file, rows in ((TRAIN_COMPARISONS_FILE, division.train), (TEST_COMPARISONS_FILE, tune)):
        left_out = write_comparisons(context.output / file, _rows(rows))
        if left_out:
            context.recorder.note(
                f"{file}: {left_out:,} of {len(rows):,} pairs are not in it, since NeMo-Aligner's form cannot hold "
                f"their system turn or a text with the mark of a turn."
            )


def _write_prompt_texts(context: StageContext, division: SplitRows, everything: Sequence[PreferenceRow]) -> None:
    """Write the prompts that train and judge the policy; those that compare champions are for no other training."""
    ids = {TRAIN_PROMPTS_FILE: division.prompts.train, TEST_PROMPTS_FILE: division.prompts.evaluation}
    for file, own in ids.items():
        count, left_out = write_prompt_texts(context.output / file, (row for row in everything if row.prompt_id in own))
        if left_out:
            context.recorder.note(
                f"{file}: {left_out:,} of {count:,} prompts are not in it, since NeMo-Aligner's form cannot hold their "
                f"system turn or a text with the mark of a turn."
            )


def _funnel(
    config: FilterDatasetConfig,
    division: SplitRows,
    *,
    counter: FunnelCounter,
    sources: Sequence[PairSource],
    findings: Findings,
    prompts: Mapping[str, int],
) -> Funnel:
    kept = division.train + division.validation
    strengths = counted(item.strength for item in kept)
    return Funnel(
        **of_every_funnel(config, sources, counter=counter, overlaps=findings.overlaps),
        train_pairs=len(division.train),
        validation_pairs=len(division.validation),
        validation_parts=_parts(division, config.validation_parts),
        policy_train_prompts=prompts[POLICY_TRAIN_PROMPTS_FILE],
        policy_eval_prompts=prompts[POLICY_EVAL_PROMPTS_FILE],
        pairs_set_aside_for_policy=len(division.set_aside),
        kept_by_domain=counted(item.row.pair.domain for item in kept),
        kept_by_strength=tuple(sorted((int(strength), count) for strength, count in strengths)),
        **_rows_read_by_group(sources),
        train_by_source=counted(item.source for item in division.train),
        polarity=findings.polarity,
        reference=findings.reference,
    )


def of_every_funnel(
    config: RowFilters, sources: Sequence[Source[Any]], *, counter: FunnelCounter, overlaps: Overlaps
) -> dict[str, Any]:
    """What the funnels of pairs, of prompts and of demonstrations say alike: the rows read, each step, overlaps."""
    duplicates = overlaps.near_duplicates
    return {
        "sources": tuple(source.origin for source in sources),
        "rows_read": counter.total.rows_read,
        "steps": tuple(counter.total.steps),
        "num_similar_prompts": overlaps.num_similar_prompts,
        "num_near_duplicates": None if duplicates is None else len(duplicates),
        "contamination": tuple(overlaps.suites),
        "language_detector": detector_name() if config.check_language_on_text else "",
    }


def _parts(division: SplitRows, wanted: ValidationParts) -> tuple[ValidationPart, ...]:
    parts = {
        "tune": (division.parts.tune, wanted.tune),
        "test": (division.parts.test, wanted.test),
        "frozen": (division.parts.frozen, wanted.frozen),
    }
    return tuple(
        ValidationPart(
            name=name,
            num_pairs=len(division.rows_of(ids)),
            num_prompts=len(ids),
            is_test=name == "test" or ids == division.parts.test,
            share=share,
        )
        for name, (ids, share) in parts.items()
    )


def _rows_read_by_group(sources: Sequence[PairSource]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Rows read by domain, language (detected, where the column says nothing), strength and source."""
    malformed = [row for source in sources for rows in source.malformed.values() for row in rows]
    good = [item for source in sources for item in source.rows]
    groups = {
        "domain": [row.domain for row in malformed] + [item.row.pair.domain for item in good],
        "language": [row.language for row in malformed] + [item.row.pair.language for item in good],
        "strength": [row.strength for row in malformed] + [item.strength for item in good],
        "source": [row.source for row in malformed] + [item.source for item in good],
    }
    return {f"read_by_{kind}": counted([name or UNKNOWN for name in names]) for kind, names in groups.items()}


def _rows(items: Iterable[PlacedRow]) -> list[PreferenceRow]:
    return [item.row for item in items]
