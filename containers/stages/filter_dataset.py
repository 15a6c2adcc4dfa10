"""Stage filter_dataset: preference rows in; training pairs, validation pairs and policy prompts out, as parquet.

Every row that is read is kept or counted under one named reason; `funnel.json` has the counts, `dropped.jsonl` shows
some rows of each reason.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.names import (
    FUNNEL_FILE,
    POLICY_EVAL_PROMPTS_FILE,
    POLICY_TRAIN_PROMPTS_FILE,
    TRAIN_PAIRS_FILE,
    VALIDATION_PAIRS_FILE,
)
from containers.contracts.outcome import Metric
from containers.contracts.records import Funnel
from containers.contracts.stage_configs import FilterDatasetConfig
from containers.stages.context import StageContext
from containers.stages.errors import BadConfigError
from containers.stages.filter_chain import FilterChain, Rows
from containers.stages.filter_floors import PairsLeft, check_floors, check_policy_prompts
from containers.stages.funnel import FunnelCounter, counted, dropped_in_words
from containers.stages.language import LanguageJudge, detector_name
from containers.stages.pair_schemas import PreferenceRow
from containers.stages.pair_sources import Source, check_malformed, languages_seen, malformed_by_reason, read_source
from containers.stages.pair_tables import write_pairs, write_prompts
from containers.stages.prompt_split import PolicyPrompts, share_of, split_policy_prompts
from containers.stages.token_lengths import load_token_counter

DROPPED_FILE = "dropped.jsonl"


@dataclass(frozen=True)
class Division:
    """Where the surviving rows went."""

    train: list[PreferenceRow]
    validation: list[PreferenceRow]
    set_aside: list[PreferenceRow]
    prompts: PolicyPrompts


def run(context: StageContext) -> tuple[Metric, ...]:
    """Filter, split and write the pairs; returns the counts.

    Raises:
        BadDataError: unknown schema, damaged file, too many malformed rows, or fewer pairs than the config's floors;
            the message shows the funnel.
        BadConfigError: an unknown language, or max_tokens without a tokenizer.
    """
    config = _config(context)
    sources = _read(context, max_malformed_fraction=config.max_malformed_fraction)
    rows = [row for source in sources for row in source.rows]
    languages = {source.split: languages_seen(source.rows) for source in sources}
    counter = FunnelCounter({source.split: source.rows_read for source in sources})
    for reason, malformed in malformed_by_reason(sources):
        counter.step(reason, malformed)
    rows = _filtered(rows, context=context, config=config, counter=counter)
    division = _divide(rows, config=config, seed=context.spec.seed, has_source=len(sources) > 1)
    _check(division, counter=counter, fraction=config.policy_prompt_fraction)
    check_floors(
        config,
        counter=counter,
        left=PairsLeft(
            train=len(division.train), validation=len(division.validation), set_aside=len(division.set_aside)
        ),
        languages=languages,
    )
    check_policy_prompts(
        config, train_prompts=len(division.prompts.train), eval_prompts=len(division.prompts.evaluation)
    )
    funnel = _write(context, division, counter=counter, sources=sources)
    context.recorder.note(
        f"{funnel.rows_read:,} rows read, {dropped_in_words(counter.total)}; "
        f"{funnel.train_pairs:,} training pairs, {funnel.validation_pairs:,} validation pairs, "
        f"{funnel.policy_train_prompts:,} + {funnel.policy_eval_prompts:,} policy prompts."
    )
    return _metrics(funnel, num_dropped=counter.total.num_dropped, num_malformed=sum(s.num_malformed for s in sources))


def _config(context: StageContext) -> FilterDatasetConfig:
    config = context.spec.config
    if not isinstance(config, FilterDatasetConfig):
        raise BadConfigError(f"filter_dataset was given the configuration of {config.stage}.")
    if config.max_tokens is not None and not context.has_input("tokenizer"):
        raise BadConfigError(
            f"filter_dataset.max_tokens is {config.max_tokens}, and there is no tokenizer to count with. Name a "
            f"base_model, or leave max_tokens out: max_characters ({config.max_characters:,}) still holds."
        )
    return config


def _read(context: StageContext, *, max_malformed_fraction: float) -> list[Source]:
    """The training source and, where there is one, the validation source."""
    sources = [read_source(context.input("train_data"), split="train")]
    if context.has_input("validation_data"):
        sources.append(read_source(context.input("validation_data"), split="validation"))
    for source in sources:
        context.recorder.note(f"{source.name}: {source.rows_read:,} rows, {source.num_malformed:,} malformed.")
        check_malformed(source, max_fraction=max_malformed_fraction)
    return sources


def _filtered(rows: Rows, *, context: StageContext, config: FilterDatasetConfig, counter: FunnelCounter) -> Rows:
    """The rows that pass every filter, each filter counted."""
    chain = FilterChain(config, counter=counter, seed=context.spec.seed)
    judge = LanguageJudge(config.languages) if config.check_language_on_text else None
    count_tokens = None
    if config.max_tokens is not None:
        tokenizer = context.input("tokenizer")
        count_tokens = load_token_counter(Path(tokenizer.path), origin=tokenizer.origin)
    rows = chain.by_language_column(rows)
    if judge is not None:
        rows = chain.by_detected_language(rows, judge=judge, recorder=context.recorder)
    rows = chain.by_flaws(rows, count_tokens=count_tokens)
    rows = chain.by_repetition(rows)
    return chain.by_sampling(rows)


def _divide(rows: Rows, *, config: FilterDatasetConfig, seed: int, has_source: bool) -> Division:
    """Validation from its own source or by prompt; then the policy's prompts out of the training prompts."""
    if has_source:
        held_out: Collection[str] = {item.row.prompt_id for item in rows if item.split == "validation"}
    else:
        prompt_ids = {item.row.prompt_id for item in rows}
        held_out = share_of(prompt_ids, fraction=config.validation_fraction, seed=seed, purpose="validation")
    validation = [item.row for item in rows if item.row.prompt_id in held_out]
    others = [item.row for item in rows if item.row.prompt_id not in held_out]
    prompts = split_policy_prompts(
        train_ids={row.prompt_id for row in others},
        validation_ids={row.prompt_id for row in validation},
        fraction=config.policy_prompt_fraction,
        eval_fraction=config.policy_eval_prompt_fraction,
        seed=seed,
    )
    aside = prompts.train | prompts.evaluation if config.policy_prompt_fraction > 0 else frozenset[str]()
    return Division(
        train=[row for row in others if row.prompt_id not in aside],
        validation=validation,
        set_aside=[row for row in others if row.prompt_id in aside],
        prompts=prompts,
    )


def _check(division: Division, *, counter: FunnelCounter, fraction: float) -> None:
    """Make sure that no row was lost and that no prompt stands on two sides.

    Raises:
        RuntimeError: it does; a fault of this program, not of the data.
    """
    counter.check(
        {
            "train": len(division.train),
            "validation": len(division.validation),
            "set aside for the policy": len(division.set_aside),
        }
    )
    train = {row.prompt_id for row in division.train}
    validation = {row.prompt_id for row in division.validation}
    sides = [train, validation, division.prompts.train, division.prompts.evaluation]
    if fraction <= 0:
        sides = [train, validation]
    if sum(map(len, sides)) != len(set().union(*sides)):
        raise RuntimeError("A prompt stands on two sides of the split. This is a fault of filter_dataset; report it.")


def _write(context: StageContext, division: Division, *, counter: FunnelCounter, sources: list[Source]) -> Funnel:
    """Write the artifact; returns its funnel."""
    output = context.output
    everything = division.train + division.validation + division.set_aside
    kept = division.train + division.validation
    write_pairs(output / TRAIN_PAIRS_FILE, division.train)
    write_pairs(output / VALIDATION_PAIRS_FILE, division.validation)
    policy_train_prompts = write_prompts(
        output / POLICY_TRAIN_PROMPTS_FILE, (row for row in everything if row.prompt_id in division.prompts.train)
    )
    policy_eval_prompts = write_prompts(
        output / POLICY_EVAL_PROMPTS_FILE, (row for row in everything if row.prompt_id in division.prompts.evaluation)
    )
    strengths = counted(str(round(row.pair.margin)) for row in kept)
    funnel = Funnel(
        sources=tuple(source.name for source in sources),
        rows_read=counter.total.rows_read,
        steps=tuple(counter.total.steps),
        train_pairs=len(division.train),
        validation_pairs=len(division.validation),
        policy_train_prompts=policy_train_prompts,
        policy_eval_prompts=policy_eval_prompts,
        pairs_set_aside_for_policy=len(division.set_aside),
        kept_by_domain=counted(row.pair.domain for row in kept),
        kept_by_strength=tuple(sorted((int(strength), count) for strength, count in strengths)),
        language_detector=detector_name() if _config(context).check_language_on_text else "",
    )
    (output / FUNNEL_FILE).write_text(funnel.model_dump_json(indent=2) + "\n", encoding="utf-8")
    lines = [json.dumps(example, ensure_ascii=False) + "\n" for example in counter.examples]
    (output / DROPPED_FILE).write_text("".join(lines), encoding="utf-8")
    return funnel


def _metrics(funnel: Funnel, *, num_dropped: int, num_malformed: int) -> tuple[Metric, ...]:
    read = funnel.rows_read
    counts = {
        "rows_read": read,
        "train_pairs": funnel.train_pairs,
        "validation_pairs": funnel.validation_pairs,
        "pairs_set_aside_for_policy": funnel.pairs_set_aside_for_policy,
        "policy_train_prompts": funnel.policy_train_prompts,
        "policy_eval_prompts": funnel.policy_eval_prompts,
    }
    fractions = {"dropped_fraction": num_dropped / read, "malformed_fraction": num_malformed / read}
    return (
        *(Metric(name=name, value=value, unit="rows", count=read) for name, value in counts.items()),
        *(Metric(name=name, value=value, unit="fraction", count=read) for name, value in fractions.items()),
    )
