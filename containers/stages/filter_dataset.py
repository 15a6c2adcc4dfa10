"""filter_dataset: turn preference rows into training pairs, validation pairs and policy prompts, as parquet.

Every row is kept, or counted under one named reason. `funnel.json` has the counts. `funnel_by_group.csv` has them by
domain, language, strength and source, `dropped.jsonl` some rows of each reason. `near_duplicates.jsonl` and
`contaminated.jsonl` have every such row.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.funnel import Funnel
from containers.contracts.outcome import Metric
from containers.data.filters.floors import PairsLeft, check_floors, check_policy_prompts
from containers.data.filters.inputs import filter_config, read_sources
from containers.data.filters.output import Findings, SplitRows, write_artifact
from containers.data.filters.pair_chain import PairChain, Rows
from containers.data.filters.similar_prompts import PromptGroups
from containers.data.filters.suites import suite_prompts
from containers.data.funnel import FunnelCounter, Split, dropped_text
from containers.data.language import LanguageJudge
from containers.data.rows import Turn
from containers.data.sources import PairSource, counter_of, languages_seen
from containers.data.splits import divide_held_out, share_of, split_policy_prompts
from containers.evals.polarity import checked_polarity
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError
from containers.models.chat_template import check_chat_template
from containers.models.template_losses import refusals_of, refusals_text
from containers.scoring.reference_polarity import checked_by_reference

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def run(context: StageContext) -> tuple[Metric, ...]:
    """Filter, split and write the pairs; return the counts.

    Raises:
        BadDataError: unknown schema, damaged file, too many malformed rows, labels that mostly choose the worse
            response, or fewer pairs than the config's floors; the message shows the figures.
        BadConfigError: an unknown language, or max_tokens without a tokenizer.
    """
    config = filter_config(context)
    sources = read_sources(context, config)
    polarity = checked_polarity(context, sources, confidence=config.polarity.confidence)
    by_split: dict[Split, list[PairSource]] = {}
    for source in sources:
        by_split.setdefault(source.split, []).append(source)
    languages = {split: languages_seen([row for one in group for row in one.rows]) for split, group in by_split.items()}
    counter = counter_of(sources)
    chain = PairChain(config, counter=counter, seed=context.spec.seed)
    rows = _filtered([row for source in sources for row in source.rows], chain, context=context, config=config)
    division = _divide(rows, config=config, seed=context.spec.seed, sources=sources, groups=chain.groups)
    _check(division, counter=counter, fraction=config.policy_prompt_fraction, groups=chain.groups)
    check_floors(
        config,
        counter=counter,
        left=PairsLeft(
            train=len(division.train),
            validation=len(division.validation),
            set_aside=len(division.set_aside),
            share_alike=chain.groups.largest_share({item.row.prompt_id for item in rows}),
        ),
        languages=languages,
    )
    check_policy_prompts(
        config, train_prompts=len(division.prompts.train), eval_prompts=len(division.prompts.evaluation)
    )
    origins = {(source.name, source.split): source.origin for source in sources}
    reference = checked_by_reference(context, config.polarity, rows, origins=origins)
    findings = Findings(polarity=polarity, reference=reference, overlaps=chain.overlaps)
    funnel = write_artifact(context, config, division, counter=counter, sources=sources, findings=findings)
    context.recorder.note(
        f"{funnel.rows_read:,} rows read, {dropped_text(counter.total)}; "
        f"{funnel.train_pairs:,} training pairs, {funnel.validation_pairs:,} validation pairs, "
        f"{funnel.policy_train_prompts:,} + {funnel.policy_eval_prompts:,} policy prompts."
    )
    return _metrics(
        funnel,
        num_dropped=counter.total.num_dropped,
        num_malformed=sum(source.num_malformed for source in sources),
        num_contaminated=chain.overlaps.num_contaminated_rows,
    )


def _filtered(rows: Rows, chain: PairChain, *, context: StageContext, config: FilterDatasetConfig) -> Rows:
    """Return the rows that pass every filter; each filter is counted."""
    judge = LanguageJudge(config.languages) if config.check_language_on_text else None
    token_counter = None
    if config.max_tokens is not None:
        tokenizer = context.input("tokenizer")
        token_counter = load_token_counter(Path(tokenizer.path), origin=tokenizer.origin)
    prompts = suite_prompts(context, config)
    rows = chain.by_language_column(rows)
    if judge is not None:
        rows = chain.by_detected_language(rows, judge=judge, recorder=context.recorder)
    rows = chain.by_flaws(rows, token_counter=token_counter)
    rows = chain.by_overlaps(chain.by_repetition(rows), prompts)
    return chain.by_sampling(chain.by_share(rows))


def _divide(
    rows: Rows, *, config: FilterDatasetConfig, seed: int, sources: list[PairSource], groups: PromptGroups
) -> SplitRows:
    """Split the rows: validation files, or a share of the prompts of other sources; then the policy's prompts."""
    has_file = {source.name for source in sources if source.split == "validation"}
    group_of = {prompt_id: groups.of(prompt_id) for prompt_id in {item.row.prompt_id for item in rows}}
    held_out = {group_of[item.row.prompt_id] for item in rows if item.split == "validation"}
    held_out |= share_of(
        {group_of[item.row.prompt_id] for item in rows if item.source not in has_file},
        fraction=config.validation_fraction,
        seed=seed,
        purpose="validation",
    )
    validation = [item for item in rows if group_of[item.row.prompt_id] in held_out]
    others = [item for item in rows if group_of[item.row.prompt_id] not in held_out]
    parts = divide_held_out(
        {item.row.prompt_id for item in validation}, config.validation_parts, seed=seed, groups=groups
    )
    prompts = split_policy_prompts(
        train_ids={item.row.prompt_id for item in others},
        validation=parts,
        fraction=config.policy_prompt_fraction,
        eval_fraction=config.eval_prompt_fraction,
        parts=config.validation_parts,
        seed=seed,
        groups=groups,
    )
    aside = frozenset[str]()
    if config.policy_prompt_fraction > 0:
        aside = prompts.train | prompts.evaluation | prompts.frozen
    return SplitRows(
        train=[item for item in others if item.row.prompt_id not in aside],
        validation=validation,
        set_aside=[item for item in others if item.row.prompt_id in aside],
        parts=parts,
        prompts=prompts,
    )


def _check(division: SplitRows, *, counter: FunnelCounter, fraction: float, groups: PromptGroups) -> None:
    """Check that no row was lost and that no prompt, and none like it, is on two sides of the split.

    Raises:
        RuntimeError: one check fails; a fault of this program, not of the data.
    """
    counter.check(
        {
            "train": len(division.train),
            "validation": len(division.validation),
            "set aside for the policy": len(division.set_aside),
        }
    )
    train = {item.row.prompt_id for item in division.train}
    # Parts that share their prompts are one side.
    sides: list[Collection[str]] = [train, *_different(division.parts.tune, division.parts.test, division.parts.frozen)]
    if fraction > 0:
        sides += [division.prompts.train, *_different(division.prompts.evaluation, division.prompts.frozen)]
    sides = [{groups.of(prompt_id) for prompt_id in side} for side in sides]
    if sum(map(len, sides)) != len(set().union(*sides)):
        raise RuntimeError("A prompt is on two sides of the split. This is a fault of filter_dataset; report it.")


def _different(*parts: frozenset[str]) -> list[frozenset[str]]:
    return [part for place, part in enumerate(parts) if part not in parts[:place]]


def _metrics(
    funnel: Funnel, *, num_dropped: int, num_malformed: int, num_contaminated: int | None
) -> tuple[Metric, ...]:
    read = funnel.rows_read
    counts: dict[str, tuple[int | None, str]] = {
        "rows_read": (read, "rows"),
        "train_pairs": (funnel.train_pairs, "pairs"),
        "validation_pairs": (funnel.validation_pairs, "pairs"),
        **{f"{part.name}_pairs": (part.num_pairs, "pairs") for part in funnel.validation_parts},
        "pairs_set_aside_for_policy": (funnel.pairs_set_aside_for_policy, "pairs"),
        "policy_train_prompts": (funnel.policy_train_prompts, "prompts"),
        "policy_eval_prompts": (funnel.policy_eval_prompts, "prompts"),
        "near_duplicates": (funnel.num_near_duplicates, "rows"),
        "contaminated_rows": (num_contaminated, "rows"),
    }
    fractions = {"dropped_fraction": num_dropped / read, "malformed_fraction": num_malformed / read}
    return (
        *(
            Metric(name=name, value=value, unit=unit, count=read)
            for name, (value, unit) in counts.items()
            if value is not None
        ),
        *(Metric(name=name, value=value, unit="fraction", count=read) for name, value in fractions.items()),
    )


class TokenCounter:
    """Counts the tokens of conversations; remembers those that the template refuses."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._num_seen = 0
        self._refused: list[tuple[Sequence[Turn], str]] = []

    def lengths(self, conversations: Sequence[Sequence[Turn]]) -> list[int]:
        """Number of tokens of each conversation; 0 where the template refuses it."""
        texts: dict[int, str] = {}
        refusals: dict[int, str] = {}
        if self._tokenizer.chat_template:
            refusals = refusals_of(self._tokenizer, conversations, texts=texts)
        else:
            texts = {place: "\n".join(turn["content"] for turn in turns) for place, turns in enumerate(conversations)}
        self._num_seen += len(conversations)
        self._refused += [(conversations[place], reason) for place, reason in refusals.items()]
        tokens = self._tokenizer(list(texts.values()), add_special_tokens=False)["input_ids"] if texts else []
        counts = dict(zip(texts, map(len, tokens), strict=True))
        return [counts.get(place, 0) for place in range(len(conversations))]

    def require_no_refusal(self) -> None:
        """Refuse conversations that the template refused, over all that were counted so far.

        Raises:
            BadDataError: the template refused one; says how many.
        """
        if self._refused:
            raise BadDataError(
                f"filter_dataset.max_tokens counts with the chat template of the base model. "
                f"{refusals_text(self._refused, num_seen=self._num_seen)} Leave such rows out, set max_characters "
                f"instead, or use a base model with another template."
            )


def load_token_counter(path: Path, *, origin: str) -> TokenCounter:
    """Return a counter that uses the tokenizer at `path`.

    Raises:
        BadConfigError: there is no tokenizer at `path`, or its chat template does not pass `check_chat_template`.
    """
    # Imported late: transformers takes seconds, and only max_tokens needs it.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise BadConfigError(
            f"filter_dataset.max_tokens needs the tokenizer of the base model, and {origin} holds none that loads "
            f"({error}). Leave max_tokens out, or name a base_model with a tokenizer."
        ) from error
    if tokenizer.chat_template:
        check_chat_template(tokenizer, folder=path, origin=origin)
    return TokenCounter(tokenizer)
